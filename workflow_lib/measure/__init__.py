"""Measures anybody's command: its GPUs, its steps, and what a step and a token cost.

It runs on Python 3.9, of the standard library and NVIDIA's binding alone, from the package or from
``dist/triptych.pyz``, which ``make measure`` builds.
"""
