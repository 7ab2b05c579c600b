"""Intervals: how far a figure can be trusted that was made of a few values.

``change`` is of one run: how much a quantity changes over its steps. ``differences`` is of two
cells: how far their runs lie apart. Both rest on ``students_t``.
"""
