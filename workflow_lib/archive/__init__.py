"""A sweep's archive: packed from what lies under ``results/``, and rebuilt from nothing else."""
