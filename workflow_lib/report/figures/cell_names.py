"""What figures and the page need of a cell: its place in the order, its outcome, its runs, and what
they add to its label."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow_lib.records import cell_axes
from workflow_lib.records.labels import layout_words, short_layout
from workflow_lib.records.outcomes import Outcome
from workflow_lib.results import PROFILED_RUN

Row = Mapping[str, Any]


def in_order(cells: Iterable[Row]) -> list[Row]:
    """Cells sorted by platform, model, layout and options; numbers within names sort as numbers."""
    keys = ("platform", "model", "parallelism", "options", "cell")
    return sorted(cells, key=lambda cell: [natural(cell[key]) for key in keys])


def runs_by_cell(runs: Iterable[Row]) -> dict[str, list[Row]]:
    """Cell → its runs in the order of their numbers; cells without runs are left out."""
    by_cell: dict[str, list[Row]] = {}
    for run in sorted(runs, key=lambda run: int(run["run"])):
        by_cell.setdefault(run["cell"], []).append(run)
    return by_cell


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


def completed_runs_of(cell: Row, runs: Iterable[Row]) -> list[Row]:
    """The runs of a cell that completed."""
    return [run for run in runs if run["cell"] == cell["cell"] and completed(run)]


def in_words(outcome: str) -> str:
    """An outcome as it is printed: "out of memory"."""
    return outcome.replace("_", " ")


def completed_runs(runs: Sequence[Row]) -> list[Row]:
    """Those that completed, by number."""
    done = [run for run in runs if run["outcome"] == Outcome.COMPLETED.value]
    return sorted(done, key=lambda run: run["run"])


_SHORT_FATES = {
    "communication_timeout": "comm. timeout",
    "telemetry_invalid": "bad telemetry",
    "nonfinite_loss": "loss not finite",
}


#: the mark on a name
PRESSED = "[memory pressure]"


def marked(cells: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Names of cells of CELLS, with a mark on those under memory pressure."""
    return [
        f"{name} {PRESSED}" if cell["memory_pressure"] else name
        for cell, name in zip(cells, names, strict=True)
    ]


def layouts_of_two(a: Row, b: Row) -> str:
    """Two layouts as one label: "tp2-pp16|32", or both whole if they have different parts."""
    of_a, of_b = list(layout_words(a)), list(layout_words(b))
    if of_a == of_b or len(of_a) != len(of_b):
        return " | ".join(dict.fromkeys([short_layout(a), short_layout(b)]))
    ones = {f"{name}1" for name, axis in cell_axes.AXES.items() if axis.part == "degrees"}
    pairs = [pair for pair in zip(of_a, of_b, strict=True) if not ones >= {*pair}]
    return "-".join(x if x == y else f"{x}|{y.lstrip(string.ascii_lowercase)}" for x, y in pairs)


def fate(cell: Row) -> str:
    """The outcome of a cell that did not complete, in words that fit into a figure."""
    return _SHORT_FATES.get(cell["outcome"], in_words(cell["outcome"]))
