"""By how much two cells differ in a measure: the interval that their runs support."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from workflow_lib.intervals import differences
from workflow_lib.intervals.design import Design


class Contrast(NamedTuple):
    """A ratio of A to B, or A less B."""

    estimate: float
    low: float
    high: float
    #: how probably the interval holds the truth; null where there are too few runs for one, and
    #: the ends are the least and the greatest contrast of a run of A and one of B
    coverage: float | None

    def mapped(self, function: Callable[[float], float]) -> Contrast:
        """With a rising function of the estimate and the ends."""
        estimate, low, high = map(function, self[:3])
        return Contrast(estimate, low, high, self.coverage)


def ratio(a: Sequence[float], b: Sequence[float], design: Design) -> Contrast:
    """A over B, by logarithms. Raises ValueError for values ≤ 0."""
    return difference(*logarithms(a, b), design).mapped(math.exp)


def difference(a: Sequence[float], b: Sequence[float], design: Design) -> Contrast:
    """A less B."""
    if min(len(a), len(b)) < differences.FEWEST_RUNS:
        every = [x - y for x in a for y in b]
        middle = statistics.fmean(a) - statistics.fmean(b)
        return Contrast(middle, min(every), max(every), None)
    if design.in_blocks:
        found = differences.in_blocks(a, b)
    else:
        found = differences.apart(a, b, design.places_a, design.places_b)
    return Contrast(found.estimate, found.low, found.high, differences.COVERAGE)


def logarithms(a: Sequence[float], b: Sequence[float]) -> tuple[list[float], list[float]]:
    """Of both sides. Raises ValueError for values ≤ 0."""
    return [math.log(value) for value in a], [math.log(value) for value in b]
