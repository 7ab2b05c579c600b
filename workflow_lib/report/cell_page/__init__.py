"""The page of a single cell, as data that the report holds and its script shows."""
