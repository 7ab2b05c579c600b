"""What pages add to the names of cells: marks, two layouts as one, and how a cell ended."""

from __future__ import annotations

import string
from collections.abc import Sequence

from workflow_lib.records import cell_axes
from workflow_lib.records.labels import layout_words, short_layout
from workflow_lib.report.cells import Row, in_words

_SHORT_FATES = {
    "communication_timeout": "comm. timeout",
    "telemetry_invalid": "bad telemetry",
    "nonfinite_loss": "loss not finite",
}


def marked(cells: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Names of cells of CELLS, with a mark on those under memory pressure."""
    return [
        f"{name} [memory pressure]" if cell["memory_pressure"] else name
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
