"""What the figures and the page say of a cell: its label, its place in the order, its fate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow_lib.records import Outcome

Row = Mapping[str, Any]


def in_order(cells: Iterable[Row]) -> list[Row]:
    """Cells by platform, model, layout and options; numbers within names count as numbers."""
    keys = ("platform", "model", "parallelism", "options", "cell")
    return sorted(cells, key=lambda cell: [natural(cell[key]) for key in keys])


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key that puts tp2 before tp16."""
    parts = re.findall(r"\d+|\D+", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def labels(cells: Sequence[Row]) -> list[str]:
    """The shortest label of each cell that tells it from the others here.

    That is its layout; with those of its options that not all cells have; and with the end of its
    id where two cells of a platform and model are alike even so.
    """
    options = [cell["options"].split("-") for cell in cells]
    common = set.intersection(*map(set, options)) if options else set()
    short = [
        " ".join([cell["parallelism"], *(part for part in of_cell if part not in common)])
        for cell, of_cell in zip(cells, options, strict=True)
    ]
    where = [
        (cell["platform"], cell["model"], label) for cell, label in zip(cells, short, strict=True)
    ]
    return [
        f"{label} {cell['cell'].rsplit('_', 1)[-1][:6]}" if where.count(place) > 1 else label
        for cell, label, place in zip(cells, short, where, strict=True)
    ]


def completed(cell: Row) -> bool:
    """Whether any run of the cell completed, so that it has figures."""
    return bool(cell["outcome"] == Outcome.COMPLETED.value)


def in_words(outcome: str) -> str:
    """An outcome as it is printed: "out of memory"."""
    return outcome.replace("_", " ")
