"""How the runs of two cells lie in time, and so what their difference can be told apart from.

Runs are *in blocks* where the workflow submitted them in one random order
(:mod:`workflow_lib.order`), each block has a run of both cells, and the blocks began one after the
other. Then a date, or a drift, acts on both sides alike. Else they are *apart*: all that acts on
one side alone looks like a difference, so that an allowance is made for it.

The allowance is assumed, not measured: dates and nodes are taken to change a rate, a time or an
energy by 0.5 % (one standard deviation), and a temperature by 1 °C. The difference of two sides
then lies within 1.96·√2 times as much in 95 % of cases. Of shares of time nothing is known.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from workflow_lib.comparison.measures import is_ratio, is_temperature
from workflow_lib.records import Measure

Run = Mapping[str, Any]
#: the UUIDs of a run's GPUs; none where one is not known
Gpus = frozenset[str]

_TWO_SIDES = 1.96 * math.sqrt(2)
#: what the dates and nodes of two sides may make of a ratio that is 1, and of a difference in °C
RATIO_ALLOWANCE = round(_TWO_SIDES * 0.005, 3)
TEMPERATURE_ALLOWANCE_C = round(_TWO_SIDES * 1.0, 1)


@dataclass(frozen=True)
class Design:
    """How the runs of two cells lie in time."""

    #: why they are not in blocks; "" where they are
    apart_because: str
    #: each run's place among all of them
    places_a: tuple[int, ...]
    places_b: tuple[int, ...]

    @property
    def in_blocks(self) -> bool:
        """Whether each run of A is in a block with one of B, in the order of their numbers."""
        return not self.apart_because

    @property
    def name(self) -> str:
        """As tables have it."""
        return "in_blocks" if self.in_blocks else "apart"


def design(
    runs_a: Sequence[Run],
    runs_b: Sequence[Run],
    gpus_a: Sequence[Gpus],
    gpus_b: Sequence[Gpus],
) -> Design:
    """How completed runs lie in time, both sides in the order of their numbers."""
    places_a, places_b = _places(runs_a, runs_b)
    return Design(_apart(runs_a, runs_b, gpus_a, gpus_b), places_a, places_b)


def allowance(measure: Measure, of: Design) -> float | None:
    """What dates and nodes may make of a measure where there is no difference: a share of a ratio,
    or an amount; None where that is unknown. Nothing where they act on both sides alike.
    """
    if of.in_blocks:
        return 0.0
    if is_ratio(measure):
        return RATIO_ALLOWANCE
    return TEMPERATURE_ALLOWANCE_C if is_temperature(measure) else None


def date_effect(
    a: Sequence[float], b: Sequence[float], runs_a: Sequence[Run], runs_b: Sequence[Run]
) -> float | None:
    """How far the dates (of UTC) lie apart on which both sides ran, the sides' own levels taken
    away; None where there are not two such dates.
    """
    by_date: dict[datetime.date, tuple[list[float], list[float]]] = {}
    for side, (values, runs) in enumerate(((a, runs_a), (b, runs_b))):
        level = statistics.fmean(values)
        for value, run in zip(values, runs, strict=True):
            if run["started_unix_s"] is None:
                return None
            began = datetime.datetime.fromtimestamp(run["started_unix_s"], datetime.UTC)
            by_date.setdefault(began.date(), ([], []))[side].append(value - level)
    means = [
        (statistics.fmean(of_a) + statistics.fmean(of_b)) / 2
        for of_a, of_b in by_date.values()
        if of_a and of_b
    ]
    return max(means) - min(means) if len(means) > 1 else None


def _apart(
    runs_a: Sequence[Run], runs_b: Sequence[Run], gpus_a: Sequence[Gpus], gpus_b: Sequence[Gpus]
) -> str:
    """Why runs are not in blocks; "" where they are."""
    runs = [*runs_a, *runs_b]
    if len({run["platform"] for run in runs}) > 1:
        return "the sides ran on different platforms"
    if None in (seeds := {run["order_seed"] for run in runs}) or len(seeds) > 1:
        return "the runs were not submitted in one random order"
    blocks = [run["order_block"] for run in runs_a]
    if blocks != [run["order_block"] for run in runs_b] or len(set(blocks)) < len(blocks):
        return "not every block has a completed run of both sides"
    if None in [run["started_unix_s"] for run in runs]:
        return "when a run began was not recorded"
    spans = [
        sorted((one["started_unix_s"], other["started_unix_s"]))
        for one, other in zip(runs_a, runs_b, strict=True)
    ]
    if any(before[1] > after[0] for before, after in pairwise(spans)):
        return "the runs did not begin in the order of the blocks"
    if frozenset() in (*gpus_a, *gpus_b):
        return "on which GPUs a run was is not known"
    if len(set(gpus_a)) == len(set(gpus_b)) == 1 and set(gpus_a) != set(gpus_b):
        return "the sides ran on different GPUs"
    return ""


def _places(
    runs_a: Sequence[Run], runs_b: Sequence[Run]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By when runs began; where that is not known, as if all of A had run before all of B."""
    runs = [*runs_a, *runs_b]
    order = list(range(len(runs)))
    if None not in (began := [run["started_unix_s"] for run in runs]):
        order.sort(key=lambda number: (began[number], number))
    places = {number: place for place, number in enumerate(order)}
    found = tuple(places[number] for number in range(len(runs)))
    return found[: len(runs_a)], found[len(runs_a) :]
