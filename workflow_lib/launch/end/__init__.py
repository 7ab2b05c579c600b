"""Judges how a run ended, from the files that it left."""
