"""What runs inside the job, on compute nodes: its Python steps, and a watcher for each rank."""
