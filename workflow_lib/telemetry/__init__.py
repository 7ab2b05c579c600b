"""Telemetry: one process a node that watches all its GPUs beside training.

It runs on compute nodes and in site containers, so it needs the standard library only, and a
vendor's binding (``pynvml`` or ``amdsmi``) where there are GPUs of that vendor.
"""
