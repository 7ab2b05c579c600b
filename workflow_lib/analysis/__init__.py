"""From raw files to tables: one row a run (reduce), then one a cell of a sweep (collect)."""
