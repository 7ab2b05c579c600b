"""The difference or ratio of two cells in a measure, by how their runs lie in time.

Runs are *in blocks* if the workflow submitted them in one random order (:mod:`workflow_lib.order`),
each block has a run of both cells, and the blocks began one after the other. Then a date or a drift
acts on both sides alike. A block whose two runs had different GPUs has the difference of two hosts
in it. Such blocks are independent, as Student's interval takes them to be, only if no set of GPUs
is in two of them.

Otherwise they are compared *within hosts* if two or more sessions have runs of both cells: a host
or a date acts on both sides of a session alike (:mod:`workflow_lib.intervals.within_hosts`). Runs
of other sessions are left out. One session alone does not do: nothing would show whether its
difference comes again.

All other runs are *apart*: an effect on only one of the sides looks like a difference.

A run that failed keeps its block when it is repeated, hours or days after the other run of the
block. Nothing else comes after the last block, so the order of blocks does not show this. The time
between both runs of the block does.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from workflow_lib.intervals import differences
from workflow_lib.intervals.within_hosts import Sessions, is_estimable, sessions, within_hosts

#: Two runs of a block are not of one time if they began this many times as far apart as those of
#: any other block, and at least this long. In a random order a block is so stretched about once in
#: fifty; runs that start at once on many nodes are seconds apart, by chance.
_STRETCHED = 10.0
_LEAST_STRETCH_S = 1800.0

_OTHER_GPUS = "the sides ran on different GPUs"

#: a row of RUNS
Run = Mapping[str, Any]
#: the UUIDs of a run's GPUs; empty if one of them is not known
Gpus = frozenset[str]


@dataclass(frozen=True)
class Design:
    """How the runs of two cells lie in time."""

    #: why the runs are not in blocks; "" if they are
    apart_because: str
    #: each run's place in time among the runs of both cells
    places_a: tuple[int, ...]
    places_b: tuple[int, ...]
    #: by which sessions runs are compared that are not in blocks; None if they are apart
    sessions: Sessions | None = None

    @property
    def in_blocks(self) -> bool:
        """Whether the n-th run of A is in one block with the n-th run of B."""
        return not self.apart_because

    @property
    def name(self) -> str:
        """The design's name in tables."""
        if self.in_blocks:
            return "in_blocks"
        return "apart" if self.sessions is None else "within_hosts"

    @property
    def one_sided_because(self) -> str:
        """Why something may have acted on only one of the sides; "" if dates and nodes acted on
        both alike."""
        if self.sessions is None:
            return self.apart_because
        # What comes with the first runs of a session, such as a cold host, is no steady drift.
        return "one side ran first in every session" if self.sessions.is_one_side_first else ""


def design(
    runs_a: Sequence[Run],
    runs_b: Sequence[Run],
    gpus_a: Sequence[Gpus],
    gpus_b: Sequence[Gpus],
) -> Design:
    """The design of completed runs; the runs of both sides are in the order of their numbers."""
    places_a, places_b = _places(runs_a, runs_b)
    why = _apart(runs_a, runs_b, gpus_a, gpus_b)
    within = _sessions(runs_a, runs_b, gpus_a, gpus_b) if why else None
    return Design(why, places_a, places_b, within)


def _apart(
    runs_a: Sequence[Run], runs_b: Sequence[Run], gpus_a: Sequence[Gpus], gpus_b: Sequence[Gpus]
) -> str:
    """Why runs are not in blocks; "" if they are."""
    if len({run["platform"] for run in (*runs_a, *runs_b)}) > 1:
        return "the sides ran on different platforms"
    unknown = frozenset() in (*gpus_a, *gpus_b)
    if why := _apart_in_time(runs_a, runs_b):
        shared = frozenset().union(*gpus_a) & frozenset().union(*gpus_b)
        return why if unknown or shared else f"{why} and {_OTHER_GPUS}"
    if unknown:
        return "the GPUs of a run are not known"
    # A host that is in the differences of two blocks makes these alike.
    on_two = [pair for pair in zip(gpus_a, gpus_b, strict=True) if pair[0] != pair[1]]
    if max(Counter(gpus for pair in on_two for gpus in pair).values(), default=0) > 1:
        return _OTHER_GPUS
    return ""


def _apart_in_time(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> str:
    """Why the times of runs are not those of blocks; "" if they are."""
    runs = [*runs_a, *runs_b]
    if None in (seeds := {run["order_seed"] for run in runs}) or len(seeds) > 1:
        return "the runs were not submitted in one random order"
    blocks = [run["order_block"] for run in runs_a]
    if blocks != [run["order_block"] for run in runs_b] or len(set(blocks)) < len(blocks):
        return "not every block has a completed run of both sides"
    if None in [run["started_unix_s"] for run in runs]:
        return "the start of a run was not recorded"
    spans = [
        sorted((one["started_unix_s"], other["started_unix_s"]))
        for one, other in zip(runs_a, runs_b, strict=True)
    ]
    if any(before[1] > after[0] for before, after in pairwise(spans)):
        return "the runs did not begin in the order of the blocks"
    if _is_stretched([end - begin for begin, end in spans]):
        return "a run began long after the other run of its block"
    return ""


def _sessions(
    runs_a: Sequence[Run], runs_b: Sequence[Run], gpus_a: Sequence[Gpus], gpus_b: Sequence[Gpus]
) -> Sessions | None:
    """The sessions by which runs can be compared; None if they cannot."""
    began_a, began_b = ([run["started_unix_s"] for run in runs] for runs in (runs_a, runs_b))
    if len({run["platform"] for run in (*runs_a, *runs_b)}) > 1:
        return None
    if frozenset() in (*gpus_a, *gpus_b) or None in (*began_a, *began_b):
        return None
    lie = sessions(began_a, began_b, gpus_a, gpus_b)
    # As each session has both sides, six runs leave two degrees of freedom, and one with a drift.
    if lie.count < 2 or lie.fewest_runs < differences.FEWEST_RUNS:
        return None
    return lie if is_estimable(lie) else None


def _is_stretched(apart_s: Sequence[float]) -> bool:
    """Whether the runs of one block began much further apart than those of the others."""
    *others, longest = sorted(apart_s)
    return bool(others) and longest > max(_LEAST_STRETCH_S, _STRETCHED * others[-1])


def _places(
    runs_a: Sequence[Run], runs_b: Sequence[Run]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Each run's place by the time at which it began; if that is not known, all of A come before
    all of B."""
    runs = [*runs_a, *runs_b]
    order = list(range(len(runs)))
    if None not in (began := [run["started_unix_s"] for run in runs]):
        order.sort(key=lambda number: (began[number], number))
    place_of = {number: place for place, number in enumerate(order)}
    places = tuple(place_of[number] for number in range(len(runs)))
    return places[: len(runs_a)], places[len(runs_a) :]


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
        interval = differences.in_blocks(a, b, coverage)
    elif design.sessions is not None:
        interval = within_hosts(a, b, design.sessions, coverage)
    else:
        interval = differences.apart(a, b, design.places_a, design.places_b, coverage)
    return Contrast(interval.estimate, interval.low, interval.high, coverage)


def logarithms(a: Sequence[float], b: Sequence[float]) -> tuple[list[float], list[float]]:
    """Of both sides. Raises ValueError for values ≤ 0."""
    return [math.log(value) for value in a], [math.log(value) for value in b]
