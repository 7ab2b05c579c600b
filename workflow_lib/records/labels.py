"""Names of cells: the same on pages, in plans, figures and projections.

A cell's id is ``<platform>/<model>/<parallelism>_<options>_<digest>``; it is what commands take and
what directories are called. Readers get its name instead, which leaves out what tells nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from workflow_lib.records import cell_axes
from workflow_lib.records.axes import joined
from workflow_lib.records.training import NATIVE

Row = Mapping[str, Any]

_LAYOUT = tuple(axis for axis in cell_axes.AXES.values() if axis.part == "degrees")
_OPTIONS = tuple(axis for axis in cell_axes.AXES.values() if axis.part == "training")


def labels(cells: Sequence[Row], without: Collection[str] = ()) -> list[str]:
    """A name for each cell, unique among ``cells`` of one platform and model: "tp2-pp16 mb4
    recompute". Axes ``without`` are not named.

    A name is the cell's layout without degrees of 1, followed by those of its options that not all
    cells have. If two cells of a platform and model still have the same name, all axes in which
    they differ are added. :func:`shared` are the options that are left out.
    """
    options = _options(cells, without)
    telling = _telling(options)
    names = []
    for cell, words in zip(cells, options, strict=True):
        parts = [words[name] for name in telling if words[name]]
        names.append(" ".join([short_layout(cell), *parts]))
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, (cell, label) in enumerate(zip(cells, names, strict=True)):
        groups.setdefault((cell["platform"], cell["model"], label), []).append(place)
    for places in groups.values():
        if len(places) > 1:
            differing = cell_axes.differences([cells[place] for place in places], without)
            for place, of_cell in zip(places, differing, strict=True):
                # Records of an old format may have equal axes for two cells; then their ids are
                # added.
                names[place] += f" {', '.join(of_cell) or cells[place]['cell']}"
    return names


def shared(cells: Sequence[Row]) -> str:
    """The options that all cells have, which names leave out: "gb128 bf16 zero1"; "" if none."""
    options = _options(cells)
    telling = _telling(options)
    first = options[0] if options else {}
    return " ".join(word for name, word in first.items() if word and name not in telling)


def left_out(cells: Sequence[Row]) -> str:
    """A sentence on what the names of cells leave out."""
    every = shared(cells)
    rest = f", and what every cell has: {every}" if every else ""
    return f"Names leave out degrees of 1{rest}."


def _options(cells: Sequence[Row], without: Collection[str] = ()) -> list[dict[str, str]]:
    options = [
        {axis.name: axis.word(cell) for axis in _OPTIONS if axis.name not in without}
        for cell in cells
    ]
    ours = [words for cell, words in zip(cells, options, strict=True) if cell["trainer"] == NATIVE]
    backends = {words.get("backend") for words in ours}
    if "trainer" not in without and len(ours) < len(cells) and len(backends) == 1:
        # Beside other trainers ours has its name, unless its backends tell.
        for words in ours:
            words |= {"trainer": NATIVE, "backend": ""}
    return options


def _telling(options: Sequence[Mapping[str, str]]) -> list[str]:
    return [name for name in (options or [{}])[0] if len({words[name] for words in options}) > 1]


def group_labels(groups: Sequence[Sequence[Row]], free: Collection[str]) -> list[str]:
    """A name for each group of cells, which differ only in the axes ``free``."""
    return labels([group[0] for group in groups], free)


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
