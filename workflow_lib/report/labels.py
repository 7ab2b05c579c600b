"""Labels of cells: short enough for an axis, and unique among the cells of a platform and model."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator, Sequence

from workflow_lib.records import cell_axes
from workflow_lib.records.axes import joined
from workflow_lib.report.cells import Row, in_words

_LAYOUT = tuple(axis for axis in cell_axes.AXES.values() if axis.part == "degrees")
_OPTIONS = tuple(axis for axis in cell_axes.AXES.values() if axis.part == "training")
_SHORTER = {"recompute": "recomp."}
_SHORT_FATES = {
    "communication_timeout": "comm. timeout",
    "telemetry_invalid": "bad telemetry",
    "nonfinite_loss": "loss not finite",
}


def labels(
    cells: Sequence[Row], without: Collection[str] = (), *, short: bool = False
) -> list[str]:
    """A short label for each cell, unique among ``cells`` of one platform and model. Axes
    ``without`` are not named.

    A label is the cell's layout, followed by those of its options that not all cells have. If two
    cells of a platform and model still have the same label, all axes in which they differ are
    added. ``short`` leaves out degrees of 1: "tp2-pp16 mb4 recomp." for "tp2-pp16-dp1 mb4
    recompute".
    """
    options = [
        {axis.name: axis.word(cell) for axis in _OPTIONS if axis.name not in without}
        for cell in cells
    ]
    telling = [name for name in (options or [{}])[0] if len({words[name] for words in options}) > 1]
    found = []
    for cell, words in zip(cells, options, strict=True):
        layout = short_layout(cell) if short else "-".join(layout_words(cell))
        said = [words[name] for name in telling if words[name]]
        found.append(" ".join([layout, *(_SHORTER.get(w, w) if short else w for w in said)]))
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, (cell, label) in enumerate(zip(cells, found, strict=True)):
        groups.setdefault((cell["platform"], cell["model"], label), []).append(place)
    for places in groups.values():
        if len(places) > 1:
            told = cell_axes.differences([cells[place] for place in places], without)
            for place, of_cell in zip(places, told, strict=True):
                # Records of an old format may have equal axes for two cells; then their ids are
                # added.
                found[place] += f" {', '.join(of_cell) or cells[place]['cell']}"
    return found


def marked(cells: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Labels of cells of CELLS, with a mark on those under memory pressure."""
    return [
        f"{name} [memory pressure]" if cell["memory_pressure"] else name
        for cell, name in zip(cells, names, strict=True)
    ]


def short_labels(cells: Sequence[Row]) -> list[str]:
    """The labels of :func:`labels`, without degrees of 1."""
    return labels(cells, short=True)


def group_labels(groups: Sequence[Sequence[Row]], free: Collection[str]) -> list[str]:
    """A short label for each group of cells, which differ only in the axes ``free``."""
    return labels([group[0] for group in groups], free, short=True)


def layout_words(cell: Row, *, without_defaults: bool = False) -> Iterator[str]:
    """The words of a layout's name, such as "tp2", "pp16x2" and "dp1"."""
    return joined(
        (axis.field.axis, axis.word(cell))
        for axis in _LAYOUT
        if not (without_defaults and cell[axis.name] == axis.field.default)
    )


def short_layout(cell: Row) -> str:
    """A layout without degrees of 1; "dp1" if all are 1."""
    return "-".join(layout_words(cell, without_defaults=True)) or f"dp{cell['dp']}"


def layouts_of_two(a: Row, b: Row) -> str:
    """Two layouts as one label: "tp2-pp16|32", or both whole if they have different parts."""
    of_a, of_b = list(layout_words(a)), list(layout_words(b))
    if of_a == of_b or len(of_a) != len(of_b):
        return " | ".join(dict.fromkeys([short_layout(a), short_layout(b)]))
    ones = {f"{axis.name}1" for axis in _LAYOUT}
    pairs = [pair for pair in zip(of_a, of_b, strict=True) if not ones >= {*pair}]
    return "-".join(x if x == y else f"{x}|{y.lstrip(string.ascii_lowercase)}" for x, y in pairs)


def fate(cell: Row) -> str:
    """The outcome of a cell that did not complete, in words that fit into a figure."""
    return _SHORT_FATES.get(cell["outcome"], in_words(cell["outcome"]))
