"""What the figures and the page say of a cell: its label, its place in the order, its fate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow_lib.records import IDENTITY, Outcome

Row = Mapping[str, Any]

#: columns that may tell two cells of one platform, model, layout and short name of options
_TELLING = tuple(
    column.name
    for column in IDENTITY
    if column.name not in ("cell", "platform", "model", "parallelism", "options")
)


def in_order(cells: Iterable[Row]) -> list[Row]:
    """Cells by platform, model, layout and options; numbers within names count as numbers."""
    keys = ("platform", "model", "parallelism", "options", "cell")
    return sorted(cells, key=lambda cell: [natural(cell[key]) for key in keys])


def runs_by_cell(runs: Iterable[Row]) -> dict[str, list[Row]]:
    """The runs of each cell that has any, by their numbers."""
    found: dict[str, list[Row]] = {}
    for run in sorted(runs, key=lambda run: int(run["run"])):
        found.setdefault(run["cell"], []).append(run)
    return found


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key that puts tp2 before tp16."""
    parts = re.findall(r"\d+|\D+", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def labels(cells: Sequence[Row]) -> list[str]:
    """The shortest label of each cell that tells it from the others here.

    That is its layout; with those of its options that not all cells have; where two cells of a
    platform and model are alike even so, with the columns in which they differ; and with the end
    of its id where no column tells.
    """
    options = [cell["options"].split("-") for cell in cells]
    common = set.intersection(*map(set, options)) if options else set()
    short = [
        " ".join([cell["parallelism"], *(part for part in of_cell if part not in common)])
        for cell, of_cell in zip(cells, options, strict=True)
    ]
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, (cell, label) in enumerate(zip(cells, short, strict=True)):
        groups.setdefault((cell["platform"], cell["model"], label), []).append(place)
    for places in groups.values():
        if len(places) > 1:
            endings = _endings([cells[place] for place in places])
            for place, ending in zip(places, endings, strict=True):
                short[place] += f" {ending}"
    return short


def _endings(alike: Sequence[Row]) -> list[str]:
    """What tells cells from each other that layout and options do not."""
    known = [name for name in _TELLING if all(name in cell for cell in alike)]
    differing = [name for name in known if len({cell[name] for cell in alike}) > 1]
    told = [
        ", ".join(f"{name.replace('_', ' ')} {cell[name]}" for name in differing) for cell in alike
    ]
    return [
        text if text and told.count(text) == 1 else f"{text} {digest(cell)}".strip()
        for text, cell in zip(told, alike, strict=True)
    ]


def digest(cell: Row) -> str:
    """The end of a cell's id, which no other cell has."""
    return str(cell["cell"].rsplit("_", 1)[-1][:6])


def completed(cell: Row) -> bool:
    """Whether any run of the cell completed, so that it has figures."""
    return bool(cell["outcome"] == Outcome.COMPLETED.value)


def in_words(outcome: str) -> str:
    """An outcome as it is printed: "out of memory"."""
    return outcome.replace("_", " ")
