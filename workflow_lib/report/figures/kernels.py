"""Kernel time by class: the cells of a model across platforms, as figure 3 of arXiv 2509.10371, and
without and with recomputation, as figure 10."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from workflow_lib.records import cell_axes
from workflow_lib.records.labels import group_labels, labels
from workflow_lib.report.figures.cell_names import Row, completed
from workflow_lib.report.figures.kernel_bars import (
    CAPTION,
    MOST_BARS,
    Bar,
    kernel_bars_figure,
    why_no_kernels,
)
from workflow_lib.report.figures.kernel_times import Times, kernel_times
from workflow_lib.report.figures.kind import (
    KERNELS,
    Division,
    FigureKind,
    by_model,
    by_platform_and_model,
)
from workflow_lib.report.figures.tables import Tables


def _divide_by_model(tables: Tables) -> Iterator[Division[Row]]:
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
                partial(_draw_classes, times=times, names=names),
            )


def _draw_classes(
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


def _why_no_classes(tables: Tables) -> str:
    """Why there is no such figure."""
    return why_no_kernels(tables) or "no trace says how many steps it holds"


KERNEL_CLASSES = FigureKind(
    stem="kernels",
    subject="Kernel time by class across platforms",
    title="kernel time by class",
    about="Time of kernels by class in seconds per step, mean over ranks.",
    limits=KERNELS + "Whiskers span ranks.",
    most=MOST_BARS,
    divide=_divide_by_model,
    why_not=_why_no_classes,
)


_FREE = cell_axes.varied_by("recomputation")
_ORDER = ("none", "selective", "full")
_WORDS = {"none": "off", "selective": "selective", "full": "on"}


def _divide_by_recomputation(tables: Tables) -> Iterator[Division[Bar]]:
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


def _why_no_recomputation(tables: Tables) -> str:
    """Why there is no such figure."""
    return why_no_kernels(tables) or "no two profiled cells differ only in recomputation"


RECOMPUTATION = FigureKind(
    stem="recomputation",
    subject="Kernel time by class, recomputation off and on",
    about=(
        "Time of kernels by class in seconds per step, with recomputation off and on, mean over"
        " ranks."
    ),
    limits=KERNELS + "Whiskers span ranks.",
    most=MOST_BARS,
    divide=_divide_by_recomputation,
    why_not=_why_no_recomputation,
)
