"""The difference of two independent estimates, with an interval from the intervals of both.

The method is MOVER, "method of variance estimates recovery" (G. Y. Zou and A. Donner, Statistics in
Medicine 27(10), 2008, 1693–1702). Of estimates d1 and d2 with the intervals (l1,
u1) and (l2, u2)::

    low   =  d1 − d2 − √((d1 − l1)² + (u2 − d2)²)
    high  =  d1 − d2 + √((u1 − d1)² + (d2 − l2)²)

Each distance from an estimate to an end of its interval stands for a multiple of its standard
error, so that the two add in squares. An interval need not be symmetric, and the two may be made by
different methods. The coverage is that of both intervals or more: if one of the distances is small,
the interval is the other's; if both come from few degrees of freedom, it is wider than needed.
``tests/intervals/test_mover.py`` checks this by simulation.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Ends(NamedTuple):
    """An estimate, and the ends of its interval, which holds it. The unit is that of the
    estimate."""

    estimate: float
    low: float
    high: float


def difference(one: Ends, other: Ends) -> Ends:
    """One minus the other. Both have the same unit and the same coverage."""
    apart = one.estimate - other.estimate
    below = math.hypot(one.estimate - one.low, other.high - other.estimate)
    above = math.hypot(one.high - one.estimate, other.estimate - other.low)
    return Ends(apart, apart - below, apart + above)
