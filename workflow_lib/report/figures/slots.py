"""Temperature and clock over time by slot, of each cell's first completed run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow_lib.records.labels import labels
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row
from workflow_lib.report.figures.kind import Division, FigureKind, by_platform_and_model
from workflow_lib.report.figures.tables import Tables
from workflow_lib.report.figures.time_panels import (
    blank_time_panel,
    series_of_cells,
    time_axis,
    why_no_series,
    worth_a_panel,
)

#: inches for the axis of time and the colour bars
_BELOW_IN = 0.95
#: column of SERIES, label, colour map
_PANELS = (
    ("temperature_c", "Temperature (°C)", "cividis"),
    ("sm_clock_mhz", "SM clock (MHz)", "viridis"),
)
_AIRFLOWS = ("front", "unknown", "rear")

#: column → the lowest and highest value of its colours
Scales = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class _Slots:
    """A cell's slots in the order of the airflow, and their means over nodes at each time."""

    slots: list[int]
    #: how many slots are not at the rear, if any is at the rear; else 0
    before_rear: int
    start_s: float
    end_s: float
    #: column → a row of values for each slot; NaN where a node gave no reading
    values: dict[str, list[list[float]]]


def _divide(tables: Tables) -> Iterator[Division[Row]]:
    """The cells of a platform and model that have a series, and those that failed."""
    having = series_of_cells(tables, *(name for name, *_ in _PANELS))
    for platform, model, cells in by_platform_and_model(tables.cells):
        shown = worth_a_panel(cells, having)
        of_all = [having[cell["cell"]] for cell in shown if cell["cell"] in having]
        yield Division(
            f"{model} on {platform}",
            (platform, model),
            shown,
            "One row for each cell, of its first completed run. The first measured step begins "
            "at 0. Each line of a row is a slot, as the mean over nodes. If the platform states "
            "its airflow, front slots come first and rear slots are below the line. Colours are "
            "the same in all figures of this model and platform. Fields without a value are "
            "hatched.",
            partial(slots_figure, series=having, scales=_scales(of_all)),
        )


def slots_figure(
    heading: str, cells: Sequence[Row], series: Mapping[str, pl.DataFrame], scales: Scales
) -> Figure:
    """Draw a row of two heat maps for each cell; ``series`` are rows of SERIES by cell."""
    panels = [panel for panel in _PANELS if panel[0] in scales]
    panel_in, gap_in = (0.8, 0.0) if len(cells) == 1 else (0.36, 0.3)
    height = style.HEAD_IN + 0.15 + len(cells) * (panel_in + gap_in) - gap_in + _BELOW_IN
    figure = Figure(figsize=(style.COLUMN_IN, height))
    margins = (0.36, 0.13, style.HEAD_IN + 0.15, _BELOW_IN)
    axes = style.grid(figure, len(cells), len(panels), margins, (0.15, gap_in))
    images: dict[str, Any] = {}
    for of_row, cell, label in zip(axes, cells, labels(cells), strict=True):
        of_row[0].set_title(label, fontsize=6.5, loc="left")
        slots = _slots(series[cell["cell"]]) if cell["cell"] in series else None
        for of_panel, (name, _, colours) in zip(of_row, panels, strict=True):
            if slots is None:
                blank_time_panel(of_panel, cell)
            else:
                images[name] = _draw(of_panel, slots, name, scales[name], colours)
        for of_panel in of_row[1:]:
            of_panel.tick_params(labelleft=False)
    for column, (name, label, _) in enumerate(panels):
        axes[-1][column].set_xlabel("Time (s)")
        if name not in images:
            continue
        place = axes[-1][column].get_position()
        at = figure.add_axes((place.x0, 0.36 / height, place.width, 0.08 / height))
        bar = figure.colorbar(images[name], cax=at, orientation="horizontal")
        bar.set_label(label, fontsize=7)
        bar.outline.set_linewidth(0.4)
    figure.supylabel("Slot (GPU in its node)", x=0.01, fontsize=7)
    style.title(figure, heading, style.marks(cells))
    return figure


def _scales(series: Sequence[pl.DataFrame]) -> Scales:
    """The lowest and highest value of each column that has any, at least one unit apart."""
    scales = {}
    for name, *_ in _PANELS:
        ends = [end for of_cell in series for end in (of_cell[name].min(), of_cell[name].max())]
        known = [end for end in ends if isinstance(end, float)]
        if known:
            low, high = min(known), max(known)
            scales[name] = (low, high) if high - low >= 1.0 else (low - 0.5, high + 0.5)
    return scales


def _slots(series: pl.DataFrame) -> _Slots:
    airflow = dict(series.select("gpu", "airflow").unique().sort("gpu", "airflow").iter_rows())
    slots = sorted(airflow, key=lambda gpu: (_AIRFLOWS.index(airflow[gpu]), gpu))
    rear = sum(where == "rear" for where in airflow.values())
    times = series["elapsed_s"].unique().sort().to_list()
    columns = [name for name, *_ in _PANELS]
    means = series.group_by("gpu", "elapsed_s").agg(
        # If a node gave no reading, the mean would be of other nodes.
        pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sort().mean()).alias(name)
        for name in columns
    )
    at = {time: place for place, time in enumerate(times)}
    nan = float("nan")
    values = {name: [[nan] * len(times) for _ in slots] for name in columns}
    for row in means.iter_rows(named=True):
        for name in columns:
            if row[name] is not None:
                values[name][slots.index(row["gpu"])][at[row["elapsed_s"]]] = row[name]
    half = series["interval_s"][0] / 2
    return _Slots(
        slots, len(slots) - rear if rear else 0, times[0] - half, times[-1] + half, values
    )


def _draw(axes: Axes, slots: _Slots, name: str, scale: tuple[float, float], colours: str) -> Any:
    """Draw a heat map of one column; return the image, for the colour bar."""
    axes.patch.set(facecolor=style.HATCHED, edgecolor=style.HATCH, hatch="/////", linewidth=0)
    image = axes.imshow(
        slots.values[name],
        cmap=colours,
        vmin=scale[0],
        vmax=scale[1],
        interpolation="none",
        aspect="auto",
        extent=(slots.start_s, slots.end_s, len(slots.slots), 0),
    )
    if slots.before_rear:
        axes.axhline(slots.before_rear, color="white", linewidth=1.2)
        axes.axhline(slots.before_rear, color="black", linewidth=0.6)
    # Only as many numbers as there is room for.
    every = -(-len(slots.slots) // 4)
    axes.set_yticks(
        [place + 0.5 for place in range(0, len(slots.slots), every)],
        [str(slot) for slot in slots.slots[::every]],
        fontsize=style.SMALLEST_PT,
    )
    axes.tick_params(axis="y", length=0)
    time_axis(axes)
    return image


KIND = FigureKind(
    stem="slots",
    subject="Temperature and clock by slot over time",
    about=(
        "Temperature (°C) and clock (MHz) by slot over time (s), of each cell's first "
        "completed run."
    ),
    limits="One run does not show how runs vary. Fields without a value are hatched.",
    most=12,
    divide=_divide,
    why_not=lambda tables: why_no_series(tables, "temperature_c"),
    over_time=True,
)
