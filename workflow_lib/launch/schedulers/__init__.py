"""Talks to Slurm, or starts jobs on this machine."""
