"""The node around its GPUs: CPUs, memory, network, fans and power."""
