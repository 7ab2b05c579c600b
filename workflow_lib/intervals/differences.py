"""Estimates how far the runs of two cells lie apart, with an interval.

There are three ways, by how the runs lie in time. Values are those of runs, in their unit, or their
logarithms, whose difference is that of a ratio::

    in blocks   a b   b a   a b        the difference of each block; Student's t over blocks
    within      a b a  |  b b a        the difference within each session, that is, on one host
    apart       a a a   b b b          Welch's interval, and the same with a drift taken away

``in_blocks`` needs runs that were submitted in a random order in blocks. An effect on both runs of
a block alike, such as a date or a drift from block to block, cancels in the differences. A drift
within blocks widens the interval, because every second block is in reversed order and its
difference has the opposite drift. Unequal spreads of the two cells do not matter, because only the
spread of the differences counts.

:mod:`~workflow_lib.intervals.within_hosts` is for other runs of several hosts or dates, on each of
which both cells ran.

``apart`` is for all other runs. The first interval is Welch's, which allows unequal spreads (B. L.
Welch, Biometrika 34, 1947). The second removes a steady drift per run, which is estimated from the
runs of each side: analysis of covariance, with a spread for each side, and Satterthwaite's degrees
of freedom (Biometrics Bulletin 2(6), 1946). The result spans both intervals, so it excludes "no
difference" only if both do. It cannot see a date or a node that acts on all runs of only one side;
the caller has to allow for that.

Noise is taken to be normal and independent between runs, and the coverage to be 95 %.
``tests/intervals/test_differences.py`` checks this by simulated error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workflow_lib.intervals import students_t

Floats = npt.NDArray[np.float64]

COVERAGE = 0.95
#: runs of each side; fewer do not show their spread well enough
FEWEST_RUNS = 3


@dataclass(frozen=True)
class Interval:
    """An estimate, and the ends of its interval, with a coverage of 95 % unless stated
    otherwise."""

    estimate: float
    low: float
    high: float


def in_blocks(a: Sequence[float], b: Sequence[float], coverage: float = COVERAGE) -> Interval:
    """The mean of a − b over two or more blocks; a[k] and b[k] are of one block."""
    differences = np.subtract(a, b)
    count = differences.size
    mean = float(differences.mean())
    half = half_width([float(differences.var(ddof=1)) / count], [count - 1.0], coverage)
    return Interval(mean, mean - half, mean + half)


def apart(
    a: Sequence[float],
    b: Sequence[float],
    places_a: Sequence[float],
    places_b: Sequence[float],
    coverage: float = COVERAGE,
) -> Interval:
    """The mean of a minus that of b, with an interval that spans Welch's and the one without drift.

    Each side has :data:`FEWEST_RUNS` or more runs; ``places`` are the runs' places in time.
    """
    welch = _welch(np.array(a, dtype=float), np.array(b, dtype=float), coverage)
    drift = _Drift(a, b, places_a, places_b, coverage)
    corrected = drift.difference
    return Interval(welch.estimate, min(welch.low, corrected.low), max(welch.high, corrected.high))


def drift(
    a: Sequence[float], b: Sequence[float], places_a: Sequence[float], places_b: Sequence[float]
) -> Interval:
    """The drift per run: how much a run differs from the one before it in time, with
    its interval."""
    return _Drift(a, b, places_a, places_b).slope


def _welch(a: Floats, b: Floats, coverage: float) -> Interval:
    mean = float(a.mean() - b.mean())
    variances = [float(side.var(ddof=1)) / side.size for side in (a, b)]
    half = half_width(variances, [a.size - 1.0, b.size - 1.0], coverage)
    return Interval(mean, mean - half, mean + half)


def half_width(
    variances: Sequence[float], degrees: Sequence[float], coverage: float = COVERAGE
) -> float:
    """The half-width for a sum of terms, from their variances and the degrees of
    freedom of these."""
    total = sum(variances)
    if total <= 0:
        return 0.0
    squares = sum(variance**2 / of for variance, of in zip(variances, degrees, strict=True))
    freedom = max(total**2 / squares, 1.0)
    return students_t.quantile(freedom, (1 + coverage) / 2) * math.sqrt(total)


def of_estimates(one: Interval, other: Interval) -> Interval:
    """The difference of two independent estimates, from the intervals of both, which have the same
    unit and coverage.

    The method is MOVER, "method of variance estimates recovery" (G. Y. Zou and A. Donner,
    Statistics in Medicine 27(10), 2008, 1693–1702). Each distance from an estimate to an end of its
    interval stands for a multiple of its standard error, so that the two add in squares. Intervals
    need not be symmetric, nor made by one method. The coverage is that of both or more: if one of
    the distances is small, the interval is the other's; if both come from few degrees of freedom,
    it is wider than needed. ``tests/intervals/test_mover.py`` checks this by simulation.
    """
    apart = one.estimate - other.estimate
    below = math.hypot(one.estimate - one.low, other.high - other.estimate)
    above = math.hypot(one.high - one.estimate, other.estimate - other.low)
    return Interval(apart, apart - below, apart + above)


class _Drift:
    """Two lines of one slope, one for each side: least squares, with a spread for each side."""

    def __init__(
        self,
        a: Sequence[float],
        b: Sequence[float],
        places_a: Sequence[float],
        places_b: Sequence[float],
        coverage: float = COVERAGE,
    ) -> None:
        values = [np.array(side, dtype=float) for side in (a, b)]
        places = [np.array(side, dtype=float) for side in (places_a, places_b)]
        levels = [float(side.mean()) for side in values]
        middles = [float(side.mean()) for side in places]
        values = [side - level for side, level in zip(values, levels, strict=True)]
        places = [side - middle for side, middle in zip(places, middles, strict=True)]
        squares = [float(side @ side) for side in places]
        whole = sum(squares)
        slope = sum(float(x @ y) for x, y in zip(places, values, strict=True)) / whole
        # The slope takes one degree of freedom, half from each side.
        degrees = [side.size - 1.5 for side in values]
        spreads = [
            float(np.square(y - slope * x).sum()) / of
            for x, y, of in zip(places, values, degrees, strict=True)
        ]
        of_slope = [
            spread * square / whole**2 for spread, square in zip(spreads, squares, strict=True)
        ]
        half = half_width(of_slope, degrees, coverage)
        self.slope = Interval(slope, slope - half, slope + half)
        distance = middles[0] - middles[1]
        between = levels[0] - levels[1] - slope * distance
        of_difference = [
            spread / side.size + distance**2 * variance
            for spread, side, variance in zip(spreads, values, of_slope, strict=True)
        ]
        half = half_width(of_difference, degrees, coverage)
        self.difference = Interval(between, between - half, between + half)
