"""How the runs of two cells lie in time, which decides what their difference may be due to.

Runs are *in blocks* if the workflow submitted them in one random order (:mod:`workflow_lib.order`),
each block has a run of both cells, and the blocks began one after the other. Then a date or a drift
acts on both sides alike. Otherwise they are *apart*: an effect on only one of the sides looks like
a difference, so an allowance is made for it.

The allowance is assumed, not measured. Dates and nodes are taken to change a rate, a time or an
energy by 0.5 % (one standard deviation), and a temperature by 1 °C. The difference of two sides
then lies within 1.96·√2 times as much in 95 % of cases. For shares of time the effect is unknown.
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
#: the UUIDs of a run's GPUs; empty if one of them is not known
Gpus = frozenset[str]

_TWO_SIDES = 1.96 * math.sqrt(2)
#: by how much dates and nodes may change a ratio of 1, and a difference in °C
RATIO_ALLOWANCE = round(_TWO_SIDES * 0.005, 3)
TEMPERATURE_ALLOWANCE_C = round(_TWO_SIDES * 1.0, 1)


@dataclass(frozen=True)
class Design:
    """How the runs of two cells lie in time."""

    #: why the runs are not in blocks; "" if they are
    apart_because: str
    #: each run's place in time among the runs of both cells
    places_a: tuple[int, ...]
    places_b: tuple[int, ...]

    @property
    def in_blocks(self) -> bool:
        """Whether the n-th run of A is in one block with the n-th run of B."""
        return not self.apart_because

    @property
    def name(self) -> str:
        """The design's name in tables."""
        return "in_blocks" if self.in_blocks else "apart"


def design(
    runs_a: Sequence[Run],
    runs_b: Sequence[Run],
    gpus_a: Sequence[Gpus],
    gpus_b: Sequence[Gpus],
) -> Design:
    """The design of completed runs; the runs of both sides are in the order of their numbers."""
    places_a, places_b = _places(runs_a, runs_b)
    return Design(_apart(runs_a, runs_b, gpus_a, gpus_b), places_a, places_b)


def allowance(measure: Measure, of: Design) -> float | None:
    """How far dates and nodes may change a measure without a real difference: a share of a ratio,
    or an amount. It is None if that is unknown, and 0 for runs in blocks, because both sides change
    alike."""
    if of.in_blocks:
        return 0.0
    if is_ratio(measure):
        return RATIO_ALLOWANCE
    return TEMPERATURE_ALLOWANCE_C if is_temperature(measure) else None


def date_effect(
    a: Sequence[float], b: Sequence[float], runs_a: Sequence[Run], runs_b: Sequence[Run]
) -> float | None:
    """The difference between the highest and the lowest effect of a date (UTC) on which both sides
    ran, after each side's mean is subtracted. None without two such dates."""
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
    """Why runs are not in blocks; "" if they are."""
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
    """Each run's place by the time at which it began; if that is not known, all of A come before
    all of B."""
    runs = [*runs_a, *runs_b]
    order = list(range(len(runs)))
    if None not in (began := [run["started_unix_s"] for run in runs]):
        order.sort(key=lambda number: (began[number], number))
    places = {number: place for place, number in enumerate(order)}
    found = tuple(places[number] for number in range(len(runs)))
    return found[: len(runs_a)], found[len(runs_a) :]
