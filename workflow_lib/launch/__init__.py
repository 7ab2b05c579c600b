"""Takes a cell to its outcome: renders the job script, submits it, waits, and judges the end."""
