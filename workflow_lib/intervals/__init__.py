"""Intervals: how far an estimate from a few values can be trusted.

``change`` is for one run: how much a quantity changes over its steps. ``contrasts`` is for two
cells: it chooses, by how their runs lie in time, between ``differences`` and ``within_hosts``.
``hosts`` is for how far hosts of one kind differ. All use ``students_t``.
"""
