"""Names of cells that fit beside an axis, and cells that differ in one respect alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workflow_lib.records import IDENTITY
from workflow_lib.report.cells import Row, in_words, labels

#: what ``options`` is made of, or what is another name of the cell
_NAMES = frozenset(("cell", "options"))
_SHORT_FATES = {
    "communication_timeout": "comm. timeout",
    "telemetry_invalid": "bad telemetry",
    "nonfinite_loss": "loss not finite",
}
_SHORTER = {"recompute": "recomp."}


def short_labels(cells: Sequence[Row]) -> list[str]:
    """As :func:`labels`, without degrees of 1: "tp2-pp16 mb4 recomp." for "tp2-pp16-dp1 mb4 …"."""
    return [
        " ".join([short_layout(layout), *(_SHORTER.get(word, word) for word in words)])
        for layout, *words in (label.split(" ") for label in labels(cells))
    ]


def short_layout(parallelism: str) -> str:
    """A layout without its degrees of 1; "dp1" where all are."""
    degrees = parallelism.split("-")
    return "-".join(d for d in degrees if d not in ("tp1", "pp1", "dp1", "ep1")) or degrees[-1]


def alike(cells: Iterable[Row], *but: str) -> list[list[Row]]:
    """Groups of cells that are the same in every column of IDENTITY but ``but``, as they come."""
    fixed = [column.name for column in IDENTITY if column.name not in {*_NAMES, *but}]
    groups: dict[tuple[object, ...], list[Row]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[name] for name in fixed), []).append(cell)
    return list(groups.values())


def group_labels(groups: Sequence[Sequence[Row]], *without: str) -> list[str]:
    """A short label of each group of cells that differ in the words of options ``without``."""
    if not groups:
        return []
    first = []
    for group in groups:
        words = [word for word in group[0]["options"].split("-") if word not in without]
        first.append({**group[0], "options": "-".join(words)})
    return short_labels(first)


def fate(cell: Row) -> str:
    """How a cell that did not complete ended, in words that fit into a figure."""
    return _SHORT_FATES.get(cell["outcome"], in_words(cell["outcome"]))
