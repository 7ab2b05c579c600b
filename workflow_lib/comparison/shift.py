"""By how much two samples differ: Hodges and Lehmann's estimate, and Moses' exact interval.

With m values of A and n of B, sort the m·n differences a − b. Their median estimates the shift, and
from the k-th lowest to the k-th highest they hold it with the probability::

    1 − 2·P(U ≤ k − 1)

where U is Mann and Whitney's statistic of two samples of one distribution, of which each of the
C(m + n, m) orders is equally likely, whatever the distribution (J. L. Hodges and E. L. Lehmann,
Annals of Mathematical Statistics 34(2), 1963; L. E. Moses in H. Walker and J. Lev, Statistical
Inference, 1953, chapter 18, and Technometrics 7(2), 1965; M. Hollander and D. A. Wolfe,
Nonparametric Statistical Methods, section 4.3). The orders are counted (H. B. Mann and D. R.
Whitney, Annals of Mathematical Statistics 18(1), 1947), not approximated by a normal distribution.
Of logarithms the shift is the logarithm of a ratio.

What it takes for granted: runs that do not depend on each other, and two distributions of one
shape, of which one is shifted (on logarithms: stretched). Equal values make the interval hold the
shift more often than promised, never less.

The narrowest interval that reaches 95 % is taken. With few runs none does, and the widest there
is, from the lowest to the highest difference, has the coverage 1 − 2 / C(m + n, m): 90 % for 3 and
3 runs, 80 % for 3 and 2, 67 % for 2 and 2, and none for 1 and 1. A word is given from 90 % on: that
is what three runs of each cell, the protocol of this workflow's sweeps, can reach; and there it
takes that every run of one side lies beyond every run of the other. Below, there is a range
without a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

_WANTED_COVERAGE = Fraction(95, 100)
#: with less an interval supports no word
COVERAGE_FOR_A_WORD = 0.9


class Shift(NamedTuple):
    """By how much A exceeds B: the estimate, and the interval with its exact coverage."""

    estimate: float
    low: float
    high: float
    coverage: float


def shift(a: Sequence[float], b: Sequence[float]) -> Shift:
    """The shift from ``b`` to ``a``, in their unit; each has one value or more."""
    differences = sorted(x - y for x in a for y in b)
    orders = rank_orders(len(a), len(b))
    total = math.comb(len(a) + len(b), len(a))
    cut, outside = 0, orders[0]
    while 1 - Fraction(2 * (wider := outside + _at(orders, cut + 1)), total) >= _WANTED_COVERAGE:
        cut, outside = cut + 1, wider
    count = len(differences)
    middle = (differences[(count - 1) // 2] + differences[count // 2]) / 2
    coverage = float(1 - Fraction(2 * outside, total))
    return Shift(middle, differences[cut], differences[-1 - cut], coverage)


def ratio(a: Sequence[float], b: Sequence[float]) -> Shift:
    """The ratio of ``a`` to ``b``: the shift of logarithms. Raises ValueError for values ≤ 0."""
    found = shift([math.log(value) for value in a], [math.log(value) for value in b])
    estimate, low, high = map(math.exp, found[:3])
    return Shift(estimate, low, high, found.coverage)


def rank_orders(m: int, n: int) -> list[int]:
    """In how many of the C(m + n, m) orders of two samples U is 0, 1, …, m·n.

    The coefficients of the Gaussian binomial: the product of 1 − q^(n + i) over that of 1 − q^i,
    i from 1 to m.
    """
    counts = [1] + [0] * (m * n)
    for factor in range(1, m + 1):
        for power in range(m * n, n + factor - 1, -1):
            counts[power] -= counts[power - n - factor]
        for power in range(factor, m * n + 1):
            counts[power] += counts[power - factor]
    return counts


def _at(orders: Sequence[int], u: int) -> int:
    return orders[u] if u < len(orders) else 0
