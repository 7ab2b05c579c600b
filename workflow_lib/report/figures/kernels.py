"""Like figure 3 of arXiv 2509.10371: kernel time by class, the cells of a model across
platforms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from workflow_lib.records.labels import labels
from workflow_lib.report.cells import Row, completed
from workflow_lib.report.figures.kernel_bars import (
    CAPTION,
    MOST_BARS,
    Bar,
    kernel_bars_figure,
    why_no_kernels,
)
from workflow_lib.report.figures.kernel_times import Times, kernel_times
from workflow_lib.report.figures.kind import KERNELS, Division, FigureKind, by_model
from workflow_lib.report.tables import Tables


def _divide(tables: Tables) -> Iterator[Division[Row]]:
    """The cells of each model of which any cell was profiled."""
    for model, cells in by_model(tables.cells):
        times = kernel_times(tables, [cell["cell"] for cell in cells])
        # Cells for which no profile was asked are not shown.
        shown = [
            cell
            for cell in cells
            if cell["cell"] in times or not completed(cell) or cell["profiled_outcome"] is not None
        ]
        if times:
            names = dict(zip((cell["cell"] for cell in shown), labels(shown), strict=True))
            yield Division(
                model,
                (model,),
                shown,
                f"Like figure 3 of arXiv 2509.10371. {CAPTION}",
                partial(_draw, times=times, names=names),
            )


def _draw(
    heading: str,
    cells: Sequence[Row],
    times: Mapping[str, Mapping[int, Times]],
    names: Mapping[str, str],
) -> Figure:
    """Draw a bar for each cell, those of a platform below its name."""
    bars = []
    for number, cell in enumerate(cells):
        first = not number or cell["platform"] != cells[number - 1]["platform"]
        platform = f"{cell['platform']}" if first else ""
        ranks = times.get(cell["cell"], {})
        bars.append(Bar(names[cell["cell"]], cell, ranks, heading=platform))
    return kernel_bars_figure(heading, bars)


def _why_not(tables: Tables) -> str:
    """Why there is no such figure."""
    return why_no_kernels(tables) or "no trace says how many steps it holds"


KIND = FigureKind(
    stem="kernels",
    subject="Kernel time by class across platforms",
    title="kernel time by class",
    about="Time of kernels by class in seconds per step, mean over ranks.",
    limits=KERNELS + "Whiskers span ranks.",
    most=MOST_BARS,
    divide=_divide,
    why_not=_why_not,
)
