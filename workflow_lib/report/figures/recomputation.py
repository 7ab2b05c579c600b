"""Like figure 10 of arXiv 2509.10371: kernel time by class, without and with recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from workflow_lib.records import cell_axes
from workflow_lib.records.labels import group_labels
from workflow_lib.report.figures.kernel_bars import (
    CAPTION,
    MOST_BARS,
    Bar,
    kernel_bars_figure,
    why_no_kernels,
)
from workflow_lib.report.figures.kernel_times import kernel_times
from workflow_lib.report.figures.kind import KERNELS, Division, FigureKind, by_platform_and_model
from workflow_lib.report.tables import Tables

_FREE = cell_axes.varied_by("recomputation")
_ORDER = ("none", "selective", "full")
_WORDS = {"none": "off", "selective": "selective", "full": "on"}


def _divide(tables: Tables) -> Iterator[Division[Bar]]:
    """Bars of the cells of a platform and model that differ only in recomputation."""
    for platform, model, cells in by_platform_and_model(tables.cells):
        times = kernel_times(tables, [cell["cell"] for cell in cells])
        groups = [
            sorted(group, key=lambda cell: _ORDER.index(cell["recomputation"]))
            for group in cell_axes.alike(cells, _FREE)
            if len(group) > 1 and any(cell["cell"] in times for cell in group)
        ]
        bars = []
        labels = group_labels(groups, _FREE)
        for group, label in zip(groups, labels, strict=True):
            for number, cell in enumerate(group):
                name = f"{label} {_WORDS[cell['recomputation']]}"
                bars.append(Bar(name, cell, times.get(cell["cell"], {}), apart=not number))
        yield Division(
            f"{model} on {platform}",
            (platform, model),
            bars,
            f"Like figure 10 of arXiv 2509.10371. {CAPTION}",
            kernel_bars_figure,
        )


def _why_not(tables: Tables) -> str:
    """Why there is no such figure."""
    return why_no_kernels(tables) or "no two profiled cells differ only in recomputation"


KIND = FigureKind(
    stem="recomputation",
    subject="Kernel time by class, recomputation off and on",
    about=(
        "Time of kernels by class in seconds per step, with recomputation off and on, mean over"
        " ranks."
    ),
    limits=KERNELS + "Whiskers span ranks.",
    most=MOST_BARS,
    divide=_divide,
    why_not=_why_not,
)
