"""Compares two sweeps: which cells correspond, how they differ, and which verdicts runs support."""
