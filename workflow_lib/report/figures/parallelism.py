"""Like figure 4 of arXiv 2509.10371: temperature, power, clock, efficiency and
throughput by cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow_lib.records.labels import labels
from workflow_lib.records.measures import MEASURES
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, fate
from workflow_lib.report.figures.kind import (
    MEDIANS,
    Division,
    FigureKind,
    by_model,
    by_platform_and_model,
)
from workflow_lib.report.figures.marks import in_words, tell
from workflow_lib.report.figures.numbers import (
    interval_in_words,
    significant,
    systematic_error,
    whiskers,
)
from workflow_lib.report.figures.tables import Tables


@dataclass(frozen=True)
class _Series:
    measure: str
    legend: str
    marker: str
    colour: str


@dataclass(frozen=True)
class _Panel:
    #: its name on the page
    name: str
    label: str
    series: tuple[_Series, ...]
    from_zero: bool


def _mean(measure: str) -> _Series:
    return _Series(measure, "mean or rate", "o", style.BLUE)


def _peak(measure: str) -> _Series:
    return _Series(measure, "peak reading", "^", style.VERMILLION)


_PANELS = (
    _Panel(
        "temperature",
        "Temperature\n(°C)",
        (_mean("temperature_mean_c"), _peak("temperature_peak_c")),
        False,
    ),
    _Panel(
        "power", "Power\n(W per GPU)", (_mean("power_per_gpu_mean_w"), _peak("power_peak_w")), False
    ),
    _Panel("clock", "SM clock\n(MHz)", (_mean("sm_clock_mean_mhz"),), False),
    _Panel("efficiency", "Efficiency\n(tokens/J)", (_mean("tokens_per_j"),), True),
    _Panel("throughput", "Throughput\n(tokens/s)", (_mean("tokens_per_s"),), True),
    _Panel("decoding efficiency", "Decoding\n(tokens/J)", (_mean("decode_tokens_per_j"),), True),
    _Panel(
        "decoding throughput",
        "Decoding\n(tokens/s/GPU)",
        (_mean("decode_tokens_per_s_per_gpu"),),
        True,
    ),
)


#: a figure with fewer cells keeps the column width of a figure with so many
_FEWEST_COLUMNS = 6
#: markers of power peaks, one for each kind of sensor, and their names in the caption
_PEAK_MARKERS = {"^": "triangles", "v": "inverted triangles", "<": "triangles that point left"}


def _divide(tables: Tables) -> Iterator[Division[Row]]:
    """The cells of a model in one figure if they fit into it, else those of each platform.

    A figure whose panels would all be empty is left out, unless no cell completed.
    """
    for model, cells in by_model(tables.cells):
        if len(cells) <= KIND.most:
            yield from _division(model, (model,), cells, tables)
            continue
        for platform, _, of_platform in by_platform_and_model(cells):
            yield from _division(f"{model} on {platform}", (model, platform), of_platform, tables)


def _division(
    heading: str, names: tuple[str, ...], cells: Sequence[Row], tables: Tables
) -> Iterator[Division[Row]]:
    panels = [panel.name for panel in _panels(cells)]
    if not panels:
        return
    chosen = {cell["cell"] for cell in cells}
    runs = [run for run in tables.runs if run["cell"] in chosen]
    *first, last = panels
    measured = {"power", "efficiency", "decoding efficiency"}
    error = systematic_error(runs) if measured & set(panels) else ""
    yield Division(
        heading,
        names,
        cells,
        "One column for each cell, laid out like figure 4 of arXiv 2509.10371. Markers are medians "
        f"over completed runs, bars are {interval_in_words(cells)}, grey dots single runs. "
        + (_of_power(cells) if "power" in panels else "")
        + (f"Power and efficiency have a systematic error of up to {error}. " if error else "")
        + "Hatched columns have no values and give the reason.",
        partial(parallelism_figure, runs=runs),
        title=f"{', '.join(first)}{' and ' if first else ''}{last}",
    )


def _peaks_by_sensor(cells: Sequence[Row]) -> dict[str, str]:
    """Marker → the kind of readings that its peaks of power are taken from."""
    sensors = {_peak_sensor(cell) for cell in cells if cell["power_peak_w"] is not None}
    return dict(zip(itertools.cycle(_PEAK_MARKERS), sorted(sensors), strict=False))


def _peak_sensor(cell: Row) -> str:
    return cell["power_peak_sensor"] or "readings of an unnamed sensor"


def _of_power(cells: Sequence[Row]) -> str:
    """The caption's sentence on power. Peaks of different sensors have different markers."""
    sensors = _peaks_by_sensor(cells)
    if not sensors:
        return "Power is the mean of one GPU. "
    markers, unlike = "".join(sensors.values()), ""
    if len(sensors) > 1:
        markers = "; ".join(
            f"{_PEAK_MARKERS[marker]}: {sensor}" for marker, sensor in sensors.items()
        )
        unlike = "; peaks of unlike sensors are not comparable"
    return (
        "Mean power is of one GPU; peak power is the highest value of any one GPU, a lower bound "
        f"({markers}){unlike}. "
    )


def _panels(cells: Sequence[Row]) -> list[_Panel]:
    if not any(map(completed, cells)):
        return [
            panel
            for panel in _PANELS
            if any(MEASURES[panel.series[0].measure].applies(cell["workload"]) for cell in cells)
        ]
    return [
        panel
        for panel in _PANELS
        if any(cell[series.measure] is not None for cell in cells for series in panel.series)
    ]


def parallelism_figure(heading: str, cells: Sequence[Row], runs: Sequence[Row]) -> Figure:
    """Draw cells of one model within :func:`style.styled`.

    ``cells`` and ``runs`` are rows of CELLS and RUNS. A filled marker is the median over completed
    runs, with its interval. A small dot is one of several of these. A cell that did not complete is
    a hatched band with the reason. A missing measure is marked "no data". A panel without any value
    is left out. Raises ValueError if no panel has a value.
    """
    ordered = list(cells)
    panels = _panels(ordered)
    if not panels:
        raise ValueError(f"{heading}: no completed cell has a value to draw")
    ticks = [
        f"{label} ({cell['completed']}/{cell['repeats']})"
        if completed(cell) and cell["completed"] < cell["repeats"]
        else label
        for cell, label in zip(ordered, labels(ordered), strict=True)
    ]
    height = 0.65 + 0.85 * len(panels) + style.LABEL_LETTER_IN * max(map(len, ticks))
    figure = Figure(figsize=(style.COLUMN_IN, height))
    axes = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    for panel, of_panel in zip(panels, axes, strict=True):
        _draw_panel(of_panel, panel, ordered, ticks, runs)
    for place, cell in enumerate(ordered):
        if not completed(cell):
            style.blank(axes[0], place - 0.5, place + 0.5, fate(cell))
            for of_panel in axes[1:]:
                style.blank(of_panel, place - 0.5, place + 0.5)
    _divide_platforms(axes, ordered)
    axes[-1].set_xticks(range(len(ordered)), ticks, rotation=90)
    margin = 0.5 + max(0.0, (_FEWEST_COLUMNS - len(ordered)) / 2)
    axes[-1].set_xlim(-margin, len(ordered) - 1 + margin)
    figure.align_ylabels(axes)
    handles, names = axes[0].get_legend_handles_labels()
    if handles:
        axes[0].legend(
            handles,
            names,
            loc="lower right",
            bbox_to_anchor=(1.0, 1.12 if _platforms(ordered) > 1 else 1.0),
            ncols=3,
        )
    style.title(figure, heading, style.marks(ordered))
    return figure


def _draw_panel(
    axes: Axes,
    panel: _Panel,
    cells: Sequence[Row],
    names: Sequence[str],
    runs: Sequence[Row],
) -> None:
    axes.set_ylabel(panel.label)
    axes.grid(axis="y", linewidth=0.4, color="#dddddd")
    axes.margins(y=0.15)
    drawn = False
    for series in panel.series:
        have = [
            (place, cell)
            for place, cell in enumerate(cells)
            if completed(cell) and cell[series.measure] is not None
        ]
        if not have:
            continue
        drawn = True
        shift = 0.0 if len(panel.series) == 1 else 0.12 * (1 if series.marker == "^" else -1)
        for marker, alike in _alike(series, have):
            axes.errorbar(
                [place + shift for place, _ in alike],
                [cell[series.measure] for _, cell in alike],
                yerr=whiskers([cell for _, cell in alike], series.measure),
                fmt=marker,
                color=series.colour,
                markersize=3.6,
                elinewidth=0.9,
                capsize=1.5,
                label=series.legend,
            )
        _draw_runs(axes, series, have, names, runs, shift)
        for place, cell in have:
            text = f"{names[place]}: {in_words(cell, series.measure)}"
            tell(axes, text, place + shift, cell[series.measure])
    for place, cell in enumerate(cells):
        if completed(cell) and all(cell[series.measure] is None for series in panel.series):
            style.blank(axes, place - 0.5, place + 0.5, "no data")
    if not drawn:
        axes.set_yticks([])
    elif panel.from_zero:
        axes.set_ylim(0, axes.dataLim.y1 * 1.15)
    else:
        _widen(axes)


def _alike(
    series: _Series, have: Sequence[tuple[int, Row]]
) -> Iterator[tuple[str, list[tuple[int, Row]]]]:
    """The values of a series in groups that can be compared with each other, each with
    its marker."""
    if series.measure != "power_peak_w":
        yield series.marker, list(have)
        return
    for marker, sensor in _peaks_by_sensor([cell for _, cell in have]).items():
        yield marker, [(place, cell) for place, cell in have if _peak_sensor(cell) == sensor]


def _widen(axes: Axes) -> None:
    """Show a range of at least 2 % of the value, so that differences below a sensor's resolution do
    not fill a panel."""
    low, high = axes.get_ylim()
    middle = (low + high) / 2
    least = 0.02 * abs(middle)
    if high - low < least:
        axes.set_ylim(middle - least / 2, middle + least / 2)


def _draw_runs(
    axes: Axes,
    series: _Series,
    have: Sequence[tuple[int, Row]],
    names: Sequence[str],
    runs: Sequence[Row],
    shift: float,
) -> None:
    """Draw a small dot for each completed run of cells with several of these."""
    places = {cell["cell"]: place for place, cell in have if cell["completed"] > 1}
    measure = MEASURES[series.measure]
    points = []
    for run in filter(completed, runs):
        if run["cell"] in places and run[series.measure] is not None:
            place, value = places[run["cell"]], run[series.measure]
            points.append((place + shift + 0.2, value))
            number = f"{significant(value * measure.factor)} {measure.people_unit}"
            tell(axes, f"{names[place]}, run {run['run']}: {number}", *points[-1])
    if points:
        axes.plot(*zip(*points, strict=True), ".", color=style.GREY, markersize=1.8)


def _platforms(cells: Sequence[Row]) -> int:
    return len({cell["platform"] for cell in cells})


def _divide_platforms(axes: Sequence[Axes], cells: Sequence[Row]) -> None:
    """If there are several platforms, write each name above its cells and draw lines
    between them."""
    if _platforms(cells) == 1:
        return
    begin = 0
    for place in range(1, len(cells) + 1):
        if place < len(cells) and cells[place]["platform"] == cells[begin]["platform"]:
            continue
        axes[0].annotate(
            cells[begin]["platform"],
            ((begin + place - 1) / 2, 1.02),
            xycoords=axes[0].get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=6.5,
        )
        if place < len(cells):
            for of_panel in axes:
                of_panel.axvline(place - 0.5, color="black", linewidth=0.6)
        begin = place


KIND = FigureKind(
    stem="parallelism",
    subject="Temperature, power, clock, efficiency and throughput by cell",
    title="temperature, power, clock, efficiency and throughput",
    about=(
        "Temperature (°C), power (W), clock (MHz), efficiency (tokens/J, the inverse of J/token) "
        "and throughput (tokens/s) of each cell."
    ),
    limits=MEDIANS + "Peaks are lower bounds. Hatched columns have no values and give the reason.",
    most=15,
    divide=_divide,
    why_not=lambda tables: (
        "no completed cell has a value of any of these" if tables.cells else "there is no cell"
    ),
)
