"""Runs inside the job, on compute nodes: the job's Python steps, and a watcher for each rank."""
