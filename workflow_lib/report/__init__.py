"""Makes figures and one page from the tables of a sweep."""
