"""The report of a sweep: one page with all in it."""
