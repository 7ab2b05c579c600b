"""Which cells a test contrasts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workflow_lib.comparison.matching import NAMED, Pair, best_pairs
from workflow_lib.config import ClaimTest, held_in_tables, left_open, selects
from workflow_lib.records import cell_axes
from workflow_lib.report.figures.cell_names import Row, in_order

_PLACE = cell_axes.of_roles("place")
_LAYOUT = cell_axes.of_roles("layout")
#: what a model's name stands for
_MODEL = tuple(name for name, axis in cell_axes.AXES.items() if axis.part == "model")
#: how many steps a run takes; a model whose steps are shorter takes more of them
_STEPS = ("warmup_steps", "measured_steps")


def fitting(cells: Sequence[Row], *wanted: Mapping[str, Any]) -> list[Row]:
    """The cells that have the values of all given mappings, in the order of reports."""
    return in_order(
        cell
        for cell in cells
        if all(selects(name, value, cell[name]) for axes in wanted for name, value in axes.items())
    )


def pairs(test: ClaimTest, cells: Sequence[Row]) -> list[Pair]:
    """The pairs of cells that a test with ``first`` and ``second`` contrasts."""
    first = fitting(cells, test.cells, test.first)
    second = fitting(cells, test.cells, test.second)
    if test.choose == "best":
        best = best_pairs(first, second)
        return [pair for pair in best if pair.measure and pair.measure.name == test.measure]
    free = _free({*test.first, *test.second, *test.alike_but})
    groups: dict[Any, list[Row]] = {}
    for cell in second:
        groups.setdefault(cell_axes.key(cell, free), []).append(cell)
    return [
        Pair(NAMED, one, other)
        for one in first
        for other in groups.get(cell_axes.key(one, free), [])
        if one["cell"] != other["cell"]
    ]


def free_between(test: ClaimTest) -> tuple[set[str], set[str]]:
    """The axes in which the first cells of two pairs may differ, and those of their second cells:
    what tells the pairs apart, what depends on that, and what the test leaves open."""
    free = _free({*test.pair})
    if "model" in test.pair:
        free |= {*_STEPS}
    return free | left_open(test.cells, test.first), free | left_open(test.cells, test.second)


def _free(named: set[str]) -> set[str]:
    """The axes in which two cells may differ: those that are named, and those that depend on
    these."""
    free = set(named)
    if "model" in named:
        free |= {*_MODEL}
    if named & {*_PLACE}:
        free |= {*_PLACE}
    if named & {*_PLACE, *_LAYOUT, "gpus"}:
        free.add("nodes")
    if "tp" in named:
        # It has no effect if TP is 1.
        free.add("sequence_parallel")
    for name, cell_axis in cell_axes.AXES.items():
        axis = cell_axis.field.axis
        if axis.detail_of in named or (axis.only_with and axis.only_with[0] in named):
            free.add(name)
    return free


def why_no_pair(test: ClaimTest, cells: Sequence[Row]) -> str:
    """Why a test has nothing to contrast: which cells no sweep has."""
    missing = [
        f"{name} ({selected_in_words({**test.cells, **which})})"
        for name, which in (("the first", test.first), ("the second", test.second))
        if not fitting(cells, test.cells, which)
    ]
    if test.sample_rate_hz is not None:
        return "no sweep has runs in which sampling rates alternate"
    if not test.first:
        return f"no sweep has such a cell ({selected_in_words(test.cells)})"
    if missing:
        return f"no sweep has a cell that fits {' nor '.join(missing)}"
    return "no two such cells are alike in every other axis"


def selected_in_words(wanted: Mapping[str, Any]) -> str:
    """What a filter selects: "model llama3-8b, tp 2 or 4"; "any" if it excludes nothing."""
    selected = (
        f"{name} {' or '.join(map(_value_in_words, held_in_tables(name, value)))}"
        for name, value in wanted.items()
    )
    return ", ".join(selected) or "any"


def _value_in_words(value: Any) -> str:
    """A value of a table as text: a text as it is, and an empty list as "none"."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
