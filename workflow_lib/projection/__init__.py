"""Projects the time, power and memory that a model needs on more GPUs than there are, with
intervals.

A projection is fitted to runs of this workflow on few GPUs.
:mod:`research.projection.validation` tests it on published runs: it predicts some of them from
others, by splits that were fixed before.
"""
