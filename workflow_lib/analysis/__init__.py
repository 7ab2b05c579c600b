"""Turns raw files into tables: reduce makes one row per run, collect one per cell of a sweep."""
