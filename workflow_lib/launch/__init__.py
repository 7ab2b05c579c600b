"""From a cell to a job and its outcome: renders the script, submits it, waits, and classifies."""
