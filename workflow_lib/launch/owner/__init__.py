"""Owns a run while a process waits for it: submits its job, waits, and records how it ended."""
