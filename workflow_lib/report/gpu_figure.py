"""Like the study's figure 17: a heat map of every GPU's temperature and throttling by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workflow_lib.report import style
from workflow_lib.report.cells import Row, completed, in_order, in_words, labels

#: column of GPUS, heading, unit, factor to the unit, colour map
_PANELS = (
    ("temperature_mean_c", "Mean temperature", "°C", 1.0, "cividis"),
    ("throttle_power_share", "At the software power cap", "% of time", 100.0, "viridis"),
    ("throttle_thermal_share", "In thermal slowdown", "% of time", 100.0, "viridis"),
    ("throttle_brake_share", "In power-brake slowdown", "% of time", 100.0, "viridis"),
)
#: with at most so many columns each field has room for its number
_NUMBERED_COLUMNS = 16
#: temperatures closer together than this are told apart by a decimal
_NARROW_C = 5.0

#: a GPU's place in its run: which of the run's nodes, from 1, in the order of names; and its index
Place = tuple[int, int]


def has_gpu_data(gpus: Sequence[Row]) -> bool:
    """Whether any panel has a value."""
    return any(_means(name, gpus) for name, *_ in _PANELS)


def gpu_figure(heading: str, cells: Sequence[Row], gpus: Sequence[Row]) -> Figure:
    """Draw the feasible cells of one platform and model, within :func:`style.styled`.

    ``cells`` and ``gpus`` are rows of CELLS and GPUS. Rows are cells, columns are GPUs by their
    place: the first node of each run, then the second, whatever they are called. A field is the
    mean over completed runs; without a value it is hatched. ``gpus`` may hold more cells than are
    drawn: columns and colours are those of all of them, so that several figures can be compared.
    A panel without a value is left out, and the brake panel where no GPU was braked.
    """
    rows = in_order(cells)
    places, airflow = _places(gpus)
    values = {name: _means(name, gpus) for name, *_ in _PANELS}
    panels = [
        panel
        for panel in _PANELS
        if values[panel[0]]
        and (panel[0] != "throttle_brake_share" or any(values[panel[0]].values()))
    ]
    labels_in = style.LABEL_LETTER_IN * max(map(len, labels(rows)))
    wanted_in = min(style.PAGE_IN, labels_in + 0.9 + 0.085 * len(places))
    width = max(style.COLUMN_IN, labels_in + 2.0, wanted_in)
    height = 0.85 + len(panels) * (0.52 + 0.145 * len(rows))
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for of_panel, (name, title, unit, factor, colours) in zip(axes, panels, strict=True):
        image = _draw(of_panel, rows, places, values[name], factor, colours)
        none = "" if any(values[name].values()) else ": none"
        of_panel.set_title(f"{title} ({unit}){none}", loc="left", fontsize=7, pad=9)
        bar = figure.colorbar(image, ax=of_panel, pad=0.015, aspect=max(6, 1.4 * len(rows)))
        bar.set_label(unit, fontsize=6.5)
        bar.outline.set_linewidth(0.4)
        _mark_airflow(of_panel, places, airflow)
    axes[-1].set_xlabel("GPU in its node, node by node\n(F: front, R: rear of the air stream)")
    style.title(figure, heading, any(cell["simulated"] for cell in rows))
    return figure


def _places(gpus: Sequence[Row]) -> tuple[list[Place], dict[Place, str]]:
    """All places in order, and where each sits in the air stream."""
    airflow: dict[Place, str] = {}
    ordinals = _ordinals(gpus)
    for gpu in gpus:
        place = ordinals[gpu["cell"], gpu["run"], gpu["node"]], gpu["gpu"]
        airflow[place] = gpu["airflow"]
    return sorted(airflow), airflow


def _ordinals(gpus: Sequence[Row]) -> dict[tuple[str, int, str], int]:
    nodes: dict[tuple[str, int], set[str]] = {}
    for gpu in gpus:
        nodes.setdefault((gpu["cell"], gpu["run"]), set()).add(gpu["node"])
    return {
        (*run, node): number
        for run, names in nodes.items()
        for number, node in enumerate(sorted(names), start=1)
    }


def _means(name: str, gpus: Sequence[Row]) -> dict[tuple[str, Place], float]:
    """The mean over runs of a column, by cell and place; a null in any run leaves it out."""
    ordinals = _ordinals(gpus)
    found: dict[tuple[str, Place], list[float | None]] = {}
    for gpu in gpus:
        place = ordinals[gpu["cell"], gpu["run"], gpu["node"]], gpu["gpu"]
        found.setdefault((gpu["cell"], place), []).append(gpu[name])
    means = {}
    for key, several in found.items():
        numbers = [value for value in several if value is not None]
        if len(numbers) == len(several):
            means[key] = sum(numbers) / len(numbers)
    return means


def _draw(
    axes: Axes,
    rows: Sequence[Row],
    places: Sequence[Place],
    values: dict[tuple[str, Place], float],
    factor: float,
    colours: str,
) -> Any:
    """Fill the fields; returns the image for its colour bar."""
    columns = max(len(places), 1)
    background = Rectangle((0, 0), columns, len(rows), facecolor="#f4f4f4", linewidth=0, zorder=0)
    background.set_hatch("/////")
    axes.add_patch(background)
    nan = float("nan")
    fields = [[values.get((row["cell"], place), nan) * factor for place in places] for row in rows]
    low, high = min(values.values()) * factor, max(values.values()) * factor
    decimals = 0
    if factor != 1.0:
        # Of nothing but zeros, a share's whole range is shown.
        low, high = 0.0, max(high, 1.0) if high else 100.0
    elif high - low < _NARROW_C:
        decimals = 1
        if high - low < 1.0:
            low, high = low - 0.5, high + 0.5
    # As an image, because a path a field would make the page large.
    image = axes.imshow(
        fields,
        cmap=colours,
        vmin=low,
        vmax=high,
        interpolation="none",
        zorder=1,
        aspect="auto",
        extent=(0, columns, len(rows), 0),
    )
    if len(places) <= _NUMBERED_COLUMNS:
        _write_numbers(axes, fields, low, high, decimals)
    for line, row in enumerate(rows):
        if not completed(row):
            axes.text(
                columns / 2,
                line + 0.5,
                in_words(row["outcome"]),
                ha="center",
                va="center",
                fontsize=6,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
            )
    axes.set_yticks([line + 0.5 for line in range(len(rows))], labels(rows))
    axes.set_xticks(
        [column + 0.5 for column in range(len(places))],
        [str(gpu) for _, gpu in places],
        fontsize=6 if len(places) <= 2 * _NUMBERED_COLUMNS else 4.5,
    )
    axes.tick_params(length=0, pad=1.5)
    axes.set_xlim(0, columns)
    axes.set_ylim(len(rows), 0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _write_numbers(
    axes: Axes, fields: list[list[float]], low: float, high: float, decimals: int
) -> None:
    for line, of_line in enumerate(fields):
        for column, value in enumerate(of_line):
            if value == value:
                dark = (value - low) / (high - low) < 0.55
                axes.text(
                    column + 0.5,
                    line + 0.53,
                    f"{value:.{decimals}f}",
                    ha="center",
                    va="center",
                    fontsize=5.5,
                    color="white" if dark else "black",
                )


def _mark_airflow(axes: Axes, places: Sequence[Place], airflow: dict[Place, str]) -> None:
    """A letter above each column whose place in the air stream is known; lines between nodes."""
    letters = {"front": "F", "rear": "R"}
    for column, place in enumerate(places):
        axes.annotate(
            letters.get(airflow[place], ""),
            (column + 0.5, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 1),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=5 if len(places) > 2 * _NUMBERED_COLUMNS else 6,
            fontweight="bold" if airflow[place] == "rear" else "normal",
        )
        if column and place[0] != places[column - 1][0]:
            axes.axvline(column, color="black", linewidth=1.0)
            axes.axvline(column, color="white", linewidth=0.5)
