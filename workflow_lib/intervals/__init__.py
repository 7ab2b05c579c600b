"""Intervals: how far an estimate from a few values can be trusted.

``change`` is for one run: how much a quantity changes over its steps. ``differences`` is for two
cells: how far their runs lie apart. Both use ``students_t``.
"""
