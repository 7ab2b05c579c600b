"""Readings of the node besides its GPUs: CPUs, memory, network, fans and power."""
