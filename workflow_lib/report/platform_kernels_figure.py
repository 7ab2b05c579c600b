"""Like the study's figure 3: kernel time by class, the cells of a model across platforms."""

from __future__ import annotations

from functools import partial

from workflow_lib.report.cells import completed
from workflow_lib.report.entry import FigureEntry, by_model, parts, slug
from workflow_lib.report.kernel_bars import (
    CAPTION,
    MOST_BARS,
    Bar,
    kernel_bars_figure,
    why_no_kernels,
)
from workflow_lib.report.kernel_times import kernel_times
from workflow_lib.report.labels import short_labels
from workflow_lib.report.tables import Tables

SUBJECT = "Kernel time by class across platforms"


def entries(tables: Tables) -> list[FigureEntry]:
    """One figure a model, or several where many of its cells were profiled."""
    found = []
    for model, cells in by_model(tables.cells):
        times = kernel_times(tables, [cell["cell"] for cell in cells])
        # Cells that nobody wanted profiled are not missing here.
        shown = [
            cell
            for cell in cells
            if cell["cell"] in times or not completed(cell) or cell["profiled_outcome"] is not None
        ]
        names = dict(zip((cell["cell"] for cell in shown), short_labels(shown), strict=True))
        for part in parts(shown, MOST_BARS) if times else ():
            bars = []
            for number, cell in enumerate(part.items):
                first = not number or cell["platform"] != part.items[number - 1]["platform"]
                heading = f"{cell['platform']}" if first else ""
                ranks = times.get(cell["cell"], {})
                bars.append(Bar(names[cell["cell"]], cell, ranks, heading=heading))
            found.append(
                FigureEntry(
                    stem=f"kernels-{slug(model)}{part.suffix}",
                    title=f"{model}{part.counted}: kernel time by class",
                    caption=f"Like figure 3 of the study. {CAPTION}",
                    draw=partial(kernel_bars_figure, f"{model}{part.counted}", bars),
                )
            )
    return found


def why_not(tables: Tables) -> str:
    """Why there is no such figure."""
    return why_no_kernels(tables) or "no trace says how many steps it holds"
