"""The difference or ratio of two cells in a measure, with the interval that their runs support."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from workflow_lib.intervals import differences
from workflow_lib.intervals.design import Design
from workflow_lib.intervals.within_hosts import within_hosts


class Contrast(NamedTuple):
    """A ratio of A to B, or A minus B, with its interval."""

    estimate: float
    low: float
    high: float
    #: probability that the interval holds the true value. It is null if there are too few runs for
    #: an interval; then ``low`` and ``high`` are the least and the greatest contrast of a run of A
    #: and one of B
    coverage: float | None

    def mapped(self, function: Callable[[float], float]) -> Contrast:
        """The contrast with an increasing function applied to the estimate and the ends."""
        estimate, low, high = map(function, self[:3])
        return Contrast(estimate, low, high, self.coverage)


def ratio(
    a: Sequence[float], b: Sequence[float], design: Design, coverage: float = differences.COVERAGE
) -> Contrast:
    """A divided by B, by logarithms. Raises ValueError for values ≤ 0."""
    return difference(*logarithms(a, b), design, coverage).mapped(math.exp)


def difference(
    a: Sequence[float], b: Sequence[float], design: Design, coverage: float = differences.COVERAGE
) -> Contrast:
    """A minus B."""
    if min(len(a), len(b)) < differences.FEWEST_RUNS:
        every = [x - y for x in a for y in b]
        middle = statistics.fmean(a) - statistics.fmean(b)
        return Contrast(middle, min(every), max(every), None)
    if design.in_blocks:
        found = differences.in_blocks(a, b, coverage)
    elif design.sessions is not None:
        found = within_hosts(a, b, design.sessions, coverage)
    else:
        found = differences.apart(a, b, design.places_a, design.places_b, coverage)
    return Contrast(found.estimate, found.low, found.high, coverage)


def logarithms(a: Sequence[float], b: Sequence[float]) -> tuple[list[float], list[float]]:
    """Of both sides. Raises ValueError for values ≤ 0."""
    return [math.log(value) for value in a], [math.log(value) for value in b]
