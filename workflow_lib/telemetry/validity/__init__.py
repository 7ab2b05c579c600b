"""Checks whether a run's telemetry is complete and plausible. Needs only the standard library."""
