"""The trapezoid rule with interpolated edges, by which power becomes energy.

Readings lie at irregular times. Between two of them a quantity is taken to be a straight line, also
where an edge of the window lies between them::

    reading      o-----------o-----------o-----------o
                        /////|///////////|///
    window              |<----- start … end ---->|

The integral is the sum of the segments' parts inside the window: their lengths times the line's
value in their middle.
"""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """The part of a segment between two readings that lies in a window."""

    duration_s: float
    #: the quantity's value in the middle of the part
    middle: float
    #: how fast the quantity grows, in its unit per second
    slope: float


def part_within(
    reading: tuple[float, float], following: tuple[float, float], start_s: float, end_s: float
) -> Part | None:
    """What lies from ``start_s`` to ``end_s`` of the line between two readings, each a time in s
    and a value; None if nothing does."""
    (before_s, before), (after_s, after) = reading, following
    left_s, right_s = max(before_s, start_s), min(after_s, end_s)
    if right_s <= left_s:
        return None
    slope = (after - before) / (after_s - before_s)
    return Part(right_s - left_s, before + slope * ((left_s + right_s) / 2 - before_s), slope)
