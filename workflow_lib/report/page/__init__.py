"""The report of a sweep: one page that holds everything."""
