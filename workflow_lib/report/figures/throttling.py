"""Causes of throttling, stacked: the share of time of each, by cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from workflow_lib.records.labels import labels
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, completed_runs_of, fate
from workflow_lib.report.figures.kind import MEDIANS, Division, FigureKind, by_platform_and_model
from workflow_lib.report.figures.marks import in_words, tell
from workflow_lib.report.figures.tables import Tables

#: column of CELLS and RUNS, legend, colour, hatch
_CAUSES = (
    ("throttle_power_share", "power cap", style.SKY, ""),
    ("throttle_thermal_share", "thermal slowdown", style.VERMILLION, "//////"),
    ("throttle_brake_share", "power brake", "#303030", ""),
)


def _divide(tables: Tables) -> Iterator[Division[Row]]:
    """The cells of a platform and model, if any of them has a share of a cause."""
    for platform, model, cells in by_platform_and_model(tables.cells):
        if any(_known(cell) for cell in cells if completed(cell)):
            yield Division(
                f"{model} on {platform}",
                (platform, model),
                cells,
                "Share of time with each cause of throttling: mean over GPUs, median over "
                "completed runs. Lines at the ends are the range of the runs' sums. If several "
                "causes hold at the same time, each counts, so a bar may exceed 100 %. A power "
                "cap under load is normal.",
                partial(throttling_figure, runs=tables.runs),
            )


def throttling_figure(heading: str, cells: Sequence[Row], runs: Sequence[Row]) -> Figure:
    """Draw a bar for each cell, downwards; ``cells`` and ``runs`` are rows of CELLS and RUNS."""
    figure = Figure(figsize=(style.COLUMN_IN, 0.95 + 0.14 * max(len(cells), 2)))
    axes = figure.subplots()
    names = labels(cells)
    begin = [0.0] * len(cells)
    handles = []
    for name, legend, colour, hatch in _CAUSES:
        shares = [100.0 * (cell[name] or 0.0) if completed(cell) else 0.0 for cell in cells]
        look: dict[str, Any] = {
            "facecolor": colour,
            "hatch": hatch,
            "edgecolor": "white",
            "linewidth": 0.3,
        }
        axes.barh(range(len(cells)), shares, 0.78, begin, label=legend, **look)
        for place, (cell, start, share) in enumerate(zip(cells, begin, shares, strict=True)):
            if share:
                text = f"{names[place]}: {in_words(cell, name)}"
                tell(axes, text, start, place - 0.39, share, 0.78)
        begin = [start + share for start, share in zip(begin, shares, strict=True)]
        handles.append(Patch(label=legend, **look))
    longest = max(begin)
    for place, (cell, end) in enumerate(zip(cells, begin, strict=True)):
        if not completed(cell):
            style.blank_row(axes, place - 0.39, place + 0.39, fate(cell))
        elif not _known(cell):
            style.blank_row(axes, place - 0.39, place + 0.39, "no data")
        else:
            longest = max(longest, _finish(axes, place, cell, end, runs))
    axes.set_yticks(range(len(cells)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.set_xlim(0, longest * 1.06 or 100.0)
    axes.grid(axis="x", linewidth=0.4, color="#dddddd")
    axes.set_xlabel("Share of time (%)" + ("" if longest else ": none"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    style.title(figure, heading, style.marks(cells))
    return figure


def _known(row: Row) -> list[str]:
    """The causes whose share is known."""
    return [name for name, *_ in _CAUSES if row[name] is not None]


def _finish(axes: Axes, place: int, cell: Row, end: float, runs: Sequence[Row]) -> float:
    """Draw the range of the runs' sums, and name the causes that are unknown; return the range's
    end."""
    known = _known(cell)
    sums: list[float] = [
        100.0 * sum(run[name] for name in known)
        for run in completed_runs_of(cell, runs)
        if known == _known(run)
    ]
    if len(sums) > 1:
        style.range_along_row(axes, min(sums), max(sums), place, 1.5)
    if unknown := [legend for name, legend, *_ in _CAUSES if name not in known]:
        style.beside(axes, max([end, *sums]), place, f"{', '.join(unknown)} unknown")
    return max([end, *sums])


KIND = FigureKind(
    stem="throttling",
    subject="Causes of throttling",
    about="Share of time (%) with each cause of throttling, mean over GPUs.",
    limits=MEDIANS
    + "If several causes hold at the same time, each counts. A power cap under load is normal.",
    most=40,
    divide=_divide,
    why_not=lambda _: "no completed run has a share of time in any throttling",
)
