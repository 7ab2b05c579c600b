"""Telemetry: one process on each node samples all its GPUs during training.

It runs on compute nodes and in site containers, so it needs only the standard library, and the
vendor's binding (``pynvml`` or ``amdsmi``) for GPUs of that vendor.
"""
