"""Whether what was recorded suffices to tell of a run. Standard library only."""
