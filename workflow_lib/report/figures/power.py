"""Power over time of each cell's first completed run, with its steps marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workflow_lib.records.labels import labels
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row
from workflow_lib.report.figures.kind import Division, FigureKind, by_platform_and_model
from workflow_lib.report.figures.tables import Tables, by_cell
from workflow_lib.report.figures.time_panels import (
    blank_time_panel,
    mark_steps,
    series_of_cells,
    time_axis,
    why_no_series,
    worth_a_panel,
)


def _divide(tables: Tables) -> Iterator[Division[Row]]:
    """The cells of a platform and model that have a series, and those that failed."""
    having = series_of_cells(tables, "power_w")
    steps = by_cell(tables.steps)
    for platform, model, cells in by_platform_and_model(tables.cells):
        yield Division(
            f"{model} on {platform}",
            (platform, model),
            worth_a_panel(cells, having),
            "One panel for each cell, of its first completed run. The first measured step "
            "begins at 0. The line is the mean over GPUs, and the band reaches from the lowest to "
            "the highest GPU. Vertical lines show where steps begin; the warm-up is shaded. The "
            "line is broken if a GPU gave no reading.",
            partial(power_figure, series=having, steps=steps),
        )


def power_figure(
    heading: str,
    cells: Sequence[Row],
    series: Mapping[str, pl.DataFrame],
    steps: Mapping[str, pl.DataFrame],
) -> Figure:
    """Draw a panel for each cell, all with the same scale of power.

    ``series`` and ``steps`` are rows of SERIES and STEP_TIMES by cell.
    """
    named = labels(cells)
    across = 1 if len(cells) == 1 else 2
    down = -(-len(cells) // across)
    below_in = 0.5
    title_in = style.title_in(named)
    panel_in, gap_in = 1.4 if across == 1 else 0.56, 0.15 + title_in
    head_in = style.HEAD_IN + title_in
    height = head_in + down * (panel_in + gap_in) - gap_in + below_in
    figure = Figure(figsize=(style.COLUMN_IN, height))
    margins = (0.45, 0.13, head_in, below_in)
    rows = style.grid(figure, down, across, margins, (0.12, gap_in))
    axes = [panel for of_row in rows for panel in of_row]
    style.panel_titles(axes, named)
    for of_cell, cell in zip(axes, cells, strict=False):
        if cell["cell"] in series:
            _draw(of_cell, series[cell["cell"]], steps.get(cell["cell"]))
        else:
            blank_time_panel(of_cell, cell)
    _share_scale(axes[: len(cells)])
    for empty in axes[len(cells) :]:
        empty.set_axis_off()
    for lowest in axes[max(len(cells) - across, 0) : len(cells)]:
        lowest.set_xlabel("Time (s)")
    figure.supylabel("Power (W per GPU)", x=0.01, fontsize=7)
    figure.legend(
        handles=[
            Line2D([], [], color=style.BLUE, linewidth=1.0, label="mean over GPUs"),
            Patch(facecolor=style.SKY, alpha=0.6, label="lowest to highest GPU"),
        ],
        loc="lower center",
        ncols=2,
    )
    style.title(figure, heading, style.marks(cells))
    return figure


def _share_scale(axes: Sequence[Axes]) -> None:
    """Set one scale of power for all panels; its numbers are at the left."""
    limits = [panel.get_ylim() for panel in axes if panel.lines]
    for number, panel in enumerate(axes):
        if panel.lines:
            panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        if number % 2:
            panel.tick_params(labelleft=False)


def _draw(axes: Axes, series: pl.DataFrame, steps: pl.DataFrame | None) -> None:
    power = pl.col("power_w")
    over_gpus = (
        series.group_by("elapsed_s")
        .agg(
            # If a GPU gave no reading, the mean would be of other GPUs.
            pl.when(power.null_count() == 0).then(power.sort().mean()).alias("mean"),
            power.min().alias("low"),
            power.max().alias("high"),
        )
        .sort("elapsed_s")
    )
    times = over_gpus["elapsed_s"].to_list()
    low, mean, high = (
        [float("nan") if value is None else value for value in over_gpus[name].to_list()]
        for name in ("low", "mean", "high")
    )
    axes.fill_between(times, low, high, facecolor=style.SKY, alpha=0.6, linewidth=0)
    axes.plot(times, mean, color=style.BLUE, linewidth=0.9)
    mark_steps(axes, steps, series["run"][0])
    time_axis(axes)


KIND = FigureKind(
    stem="power",
    subject="Power over time",
    about=(
        "Power (W) of GPUs over time (s) of each cell's first completed run: their mean, and "
        "a band from the lowest to the highest."
    ),
    limits="One run does not show how runs vary. The line is broken where a GPU gave no reading.",
    most=16,
    divide=_divide,
    why_not=lambda tables: why_no_series(tables, "power_w"),
    over_time=True,
)
