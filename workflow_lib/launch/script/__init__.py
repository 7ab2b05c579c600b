"""Renders a run's job script, and tells whether it was edited."""
