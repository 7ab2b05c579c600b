"""Reads the present state of runs that are under way, from the ends of their files."""
