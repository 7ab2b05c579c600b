"""Like the study's figure 10: kernel time by class, without recomputation and with it."""

from __future__ import annotations

from functools import partial

from workflow_lib.records import cell_axes
from workflow_lib.report.entry import FigureEntry, by_platform_and_model, parts, slug
from workflow_lib.report.kernel_bars import (
    CAPTION,
    MOST_BARS,
    Bar,
    kernel_bars_figure,
    why_no_kernels,
)
from workflow_lib.report.kernel_times import kernel_times
from workflow_lib.report.labels import group_labels
from workflow_lib.report.tables import Tables

SUBJECT = "Kernel time by class, recomputation off and on"
_FREE = cell_axes.varied_by("recomputation")
_ORDER = ("none", "selective", "full")
_WORDS = {"none": "off", "selective": "selective", "full": "on"}


def entries(tables: Tables) -> list[FigureEntry]:
    """One figure a platform and model, of cells that differ in recomputation alone."""
    found = []
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
        for part in parts(bars, MOST_BARS):
            heading = f"{model} on {platform}{part.counted}"
            found.append(
                FigureEntry(
                    stem=f"recomputation-{slug(platform, model)}{part.suffix}",
                    title=f"{heading}: kernel time by class, recomputation off and on",
                    caption=f"Like figure 10 of the study. {CAPTION}",
                    draw=partial(kernel_bars_figure, heading, part.items),
                )
            )
    return found


def why_not(tables: Tables) -> str:
    """Why there is no such figure."""
    return why_no_kernels(tables) or "no two cells differ in recomputation alone and were profiled"
