"""How the runs of two cells lie in time, and so what their difference can be told apart from.

Runs are *in blocks* where the workflow submitted them in one random order
(:mod:`workflow_lib.order`), each block has a run of both cells, and the blocks began one after the
other. Then a date, or a drift, acts on both sides alike. Else they are *apart*: all that acts on
one side alone looks like a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

#: a row of RUNS
Run = Mapping[str, Any]
#: the UUIDs of a run's GPUs; none where one is not known
Gpus = frozenset[str]


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
