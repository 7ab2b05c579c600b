"""What owns a run while somebody waits for it: submits its job, waits, writes how it ended."""
