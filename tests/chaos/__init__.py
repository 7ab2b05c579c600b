"""Faults put into runs on a real Slurm: is anything lost, doubled or left unexplained?"""
