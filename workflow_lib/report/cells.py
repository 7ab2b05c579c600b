"""What figures and the page need of a cell: its place in the order, its outcome, its runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow_lib.records import Outcome
from workflow_lib.results import PROFILED_RUN

Row = Mapping[str, Any]


def in_order(cells: Iterable[Row]) -> list[Row]:
    """Cells sorted by platform, model, layout and options; numbers within names sort as numbers."""
    keys = ("platform", "model", "parallelism", "options", "cell")
    return sorted(cells, key=lambda cell: [natural(cell[key]) for key in keys])


def runs_by_cell(runs: Iterable[Row]) -> dict[str, list[Row]]:
    """Cell → its runs in the order of their numbers; cells without runs are left out."""
    found: dict[str, list[Row]] = {}
    for run in sorted(runs, key=lambda run: int(run["run"])):
        found.setdefault(run["cell"], []).append(run)
    return found


def profiled_runs(cells: Iterable[Row]) -> list[Row]:
    """The profiled run of each cell that is to have one, with its outcome and cause; the table of
    runs has only measured ones."""
    return [
        {
            "cell": cell["cell"],
            "run": PROFILED_RUN,
            "outcome": cell["profiled_outcome"],
            "cause": cell["profiled_cause"],
        }
        for cell in cells
        if cell["profiled_outcome"] is not None
    ]


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key that puts tp2 before tp16."""
    parts = re.findall(r"\d+|\D+", text)
    # Not int(): it takes no more than 4300 digits. Of two numbers the longer one is greater.
    numbers = [part.lstrip("0") if part.isdecimal() else None for part in parts]
    return [
        (1, 0, part) if number is None else (0, len(number), number)
        for part, number in zip(parts, numbers, strict=True)
    ]


def completed(cell: Row) -> bool:
    """Whether any run of the cell completed, so that it has values."""
    return bool(cell["outcome"] == Outcome.COMPLETED.value)


def in_words(outcome: str) -> str:
    """An outcome as it is printed: "out of memory"."""
    return outcome.replace("_", " ")


def completed_runs(runs: Sequence[Row]) -> list[Row]:
    """Those that completed, by number."""
    done = [run for run in runs if run["outcome"] == Outcome.COMPLETED.value]
    return sorted(done, key=lambda run: run["run"])
