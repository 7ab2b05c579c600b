"""Tests against a real, throwaway Slurm cluster on one machine."""
