"""What a model would need on more GPUs than there are: time, power and memory, with intervals.

Calibrated by runs of this workflow on few GPUs, and held against published runs, which
:mod:`workflow_lib.projection.validation` predicts from others by splits that were fixed first.
"""
