"""Intervals: how far an estimate from a few values can be trusted.

``change`` is for one run: how much a quantity changes over its steps. ``differences`` is for two
cells: how far their runs lie apart, and ``within_hosts`` for how far they do on one host. All use
``students_t``. ``mover`` is for two estimates that have intervals already.
"""
