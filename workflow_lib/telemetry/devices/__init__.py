"""Readings: NVIDIA GPUs through NVML, AMD GPUs through AMD SMI, and the node that has them."""
