"""The interval of the median of a few repeats.

Fewer than five repeats have only their range. Five or more have an interval that holds the true
median with a known probability, whatever the distribution. The interval from the k-th lowest to the
k-th highest of n values holds it with this probability::

    1 − 2·(C(n, 0) + C(n, 1) + … + C(n, k − 1)) / 2ⁿ

(W. R. Thompson, Annals of Mathematical Statistics 7(3), 1936). The median lies outside only if
fewer than k of the n values fall on one side of it, and each value falls on either side with
probability ½. The narrowest interval that reaches 95 % is taken. With five values none does; their
range has 93.75 %.

The bootstrap is not used, because it misses its nominal probability here. Its interval ends at the
same values or at means of two of them, because the median of each resample is one of these (B.
Efron, Annals of Statistics 7(1), 1979, section 3). In 2000 simulated samples each, normal and
log-normal, its "95 %" interval held the median in 88 % of the samples with 7 values, and in 92 to
93 % of those with 8 or 15. The bias-corrected and accelerated bootstrap was within a percentage
point of that, since its correction is made for smooth statistics. The interval of order statistics
held it in 94, 98, 99 and 97 % with 5, 7, 8 and 15 values, and needs no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

#: fewer values have only a range
FEWEST_FOR_INTERVAL = 5
_WANTED_COVERAGE = 0.95

RANGE, ORDER_STATISTICS = "range", "order_statistics"


class Interval(NamedTuple):
    """The interval of a median: its ends, its kind, and the probability that it holds the true
    median."""

    low: float
    high: float
    kind: str
    #: null where ``kind`` is RANGE
    coverage: float | None


def interval(values: Sequence[float]) -> Interval:
    """The interval of the median of one or more values."""
    ordered, count = sorted(values), len(values)
    if count < FEWEST_FOR_INTERVAL:
        return Interval(ordered[0], ordered[-1], RANGE, None)
    cut, outside = 0, 1 / 2**count
    # ``outside`` is the probability that the true median lies beyond one end of the interval.
    while 1 - 2 * (wider := outside + math.comb(count, cut + 1) / 2**count) >= _WANTED_COVERAGE:
        cut, outside = cut + 1, wider
    return Interval(ordered[cut], ordered[-1 - cut], ORDER_STATISTICS, 1 - 2 * outside)
