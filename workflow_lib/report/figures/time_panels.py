"""Cells over time, with a panel or a row for each: their series, their steps, and failed cells."""

from __future__ import annotations

from collections.abc import Container, Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, fate
from workflow_lib.report.figures.tables import Tables, by_cell

#: with more steps than this, only their beginnings are marked, by short lines at the bottom
_MOST_LINES = 40


def why_no_series(tables: Tables, column: str) -> str:
    """Why nothing of a column of SERIES can be drawn; "" if it can."""
    if tables.series is None:
        return "there is no series.parquet"
    if not len(tables.series):
        return "no completed run left readings over time"
    if tables.series[column].null_count() == len(tables.series):
        return f"no GPU gave a reading of {column}"
    return ""


def series_of_cells(tables: Tables, *columns: str) -> dict[str, pl.DataFrame]:
    """The rows of SERIES of each cell that has a value of any of the columns."""
    return {
        cell: rows
        for cell, rows in by_cell(tables.series).items()
        if any(rows[column].null_count() < len(rows) for column in columns)
    }


def worth_a_panel(cells: Sequence[Row], having: Container[str]) -> list[Row]:
    """The cells with a series, and those that failed; none if no cell has a series."""
    if not any(cell["cell"] in having for cell in cells):
        return []
    return [cell for cell in cells if cell["cell"] in having or not completed(cell)]


def said_instead(cell: Row) -> str:
    """The text in the panel of a cell that has no series."""
    return "no data" if completed(cell) else fate(cell)


def mark_steps(axes: Axes, steps: pl.DataFrame | None, run: int) -> None:
    """Draw a line where each step of a run begins, and where the last ends; shade the warm-up.

    ``steps`` are rows of STEP_TIMES of the run's cell, or None if there are none.
    """
    if steps is None:
        return
    steps = steps.filter((pl.col("run") == run) & pl.col("elapsed_s").is_not_null()).sort("step")
    if not len(steps):
        return
    edges = steps["elapsed_s"].to_list()
    if (last := steps["step_time_s"][-1]) is not None:
        edges.append(edges[-1] + last)
    top = 1.0 if len(edges) <= _MOST_LINES else 0.08
    across = axes.get_xaxis_transform()
    axes.vlines(edges, 0, top, transform=across, color="#999999", linewidth=0.35, zorder=0)
    if edges[0] < 0:
        axes.axvspan(edges[0], 0, facecolor="#ececec", linewidth=0, zorder=-1)
    axes.set_xlim(edges[0], edges[-1])


def time_axis(axes: Axes) -> None:
    """Label as many times as have room below a panel of half a column."""
    axes.xaxis.set_major_locator(MaxNLocator(4))


def blank_time_panel(axes: Axes, cell: Row) -> None:
    """Hatch a panel without a series, with the reason in it."""
    style.blank_panel(axes, said_instead(cell))
    axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
