"""How the runs of two cells lie in time, which decides what their difference may be due to.

Runs are *in blocks* if the workflow submitted them in one random order (:mod:`workflow_lib.order`),
each block has a run of both cells, and the blocks began one after the other. Then a date or a drift
acts on both sides alike. Otherwise they are *apart*: an effect on only one of the sides looks like
a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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
        return "the start of a run was not recorded"
    spans = [
        sorted((one["started_unix_s"], other["started_unix_s"]))
        for one, other in zip(runs_a, runs_b, strict=True)
    ]
    if any(before[1] > after[0] for before, after in pairwise(spans)):
        return "the runs did not begin in the order of the blocks"
    if frozenset() in (*gpus_a, *gpus_b):
        return "the GPUs of a run are not known"
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
