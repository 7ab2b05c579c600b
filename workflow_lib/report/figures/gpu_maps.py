"""Heat maps of every GPU: temperature and throttling, as figure 17 of arXiv 2509.10371, and traffic
over NVLink, as figure 5.

That figure 5 shows PCIe as well. Its counters have 32 bits, which overflow in a fraction of a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workflow_lib.records.labels import labels
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, fate
from workflow_lib.report.figures.kind import (
    Division,
    FigureKind,
    by_platform_and_model,
    reasons_of_gpus,
)
from workflow_lib.report.figures.marks import tell
from workflow_lib.report.figures.numbers import significant
from workflow_lib.report.figures.tables import Tables

#: the most cells in one heat map, so that it fits on a page
ROWS = 14
#: inches for a colour bar and its ticks
_BAR_IN = 0.62

#: a GPU's place in its run: the number of its node, from 1, in the order of names; and its slot
Place = tuple[int, int]


@dataclass(frozen=True)
class Panel:
    """One heat map of a figure."""

    title: str
    unit: str
    #: a matplotlib colour map whose lightness rises throughout
    colours: str
    #: (cell, place) → value in ``unit``
    values: Mapping[tuple[str, Place], float]
    #: whether the scale begins at 0, as for shares and rates
    from_zero: bool = True


def means(
    gpus: Sequence[Row], value: Callable[[Row], float | None]
) -> dict[tuple[str, Place], float]:
    """(cell, place) → the mean over runs of a value of rows of GPUS.

    A place is left out if its value is null in any run.
    """
    ordinals = _ordinals(gpus)
    values: dict[tuple[str, Place], list[float | None]] = {}
    for gpu in gpus:
        place = ordinals[gpu["cell"], gpu["run"], gpu["node"]], gpu["gpu"]
        values.setdefault((gpu["cell"], place), []).append(value(gpu))
    averaged = {}
    for key, several in values.items():
        numbers = [number for number in several if number is not None]
        if len(numbers) == len(several):
            averaged[key] = sum(numbers) / len(numbers)
    return averaged


def heat_map(
    heading: str, cells: Sequence[Row], gpus: Sequence[Row], panels: Sequence[Panel]
) -> Figure:
    """Draw cells of one platform and model, in the order given, within :func:`style.styled`.

    ``cells`` and ``gpus`` are rows of CELLS and GPUS. Columns are GPUs by their place: first those
    of the first node of each run, then those of the second, whatever the names of nodes. A field
    without a value is hatched. ``gpus`` and the panels may hold more cells than are drawn. Columns
    and colours are those of all of them, so that several figures can be compared.
    """
    airflow = _airflow(gpus)
    places = sorted(airflow)
    names = labels(cells)
    labels_in = style.LABEL_LETTER_IN * max(map(len, names))
    field_in = (style.COLUMN_IN - labels_in - _BAR_IN) / max(len(places), 1)
    height = 0.75 + len(panels) * (0.48 + 0.145 * len(cells))
    figure = Figure(figsize=(style.COLUMN_IN, height))
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for of_panel, panel in zip(axes, panels, strict=True):
        image = _draw(of_panel, panel, cells, places, field_in)
        _tell(of_panel, panel, cells, names, places)
        of_panel.set_yticks([line + 0.5 for line in range(len(cells))], names)
        none = "" if any(panel.values.values()) else ": none"
        of_panel.set_title(panel.title + none, loc="left", fontsize=7, pad=8)
        bar = figure.colorbar(image, ax=of_panel, pad=0.015, aspect=max(6, 1.4 * len(cells)))
        bar.set_label(panel.unit, fontsize=6.5)
        bar.outline.set_linewidth(0.4)
        _label_places(of_panel, places, field_in)
        _mark_airflow(of_panel, places, airflow, field_in)
    known = "front" in airflow.values() or "rear" in airflow.values()
    below = "GPU in its node, node by node" if _room_for_letters(field_in) else "Node, its GPUs"
    marks = "F: front, R: rear" if _room_for_letters(field_in) else "▬ above: rear"
    axes[-1].set_xlabel(f"{below}\n({marks} of the air stream)" if known else below)
    style.title(figure, heading, style.marks(cells))
    return figure


def _airflow(gpus: Sequence[Row]) -> dict[Place, str]:
    """Place → front, rear or unknown in the airflow."""
    ordinals = _ordinals(gpus)
    return {
        (ordinals[gpu["cell"], gpu["run"], gpu["node"]], gpu["gpu"]): gpu["airflow"] for gpu in gpus
    }


def _ordinals(gpus: Sequence[Row]) -> dict[tuple[str, int, str], int]:
    nodes: dict[tuple[str, int], set[str]] = {}
    for gpu in gpus:
        nodes.setdefault((gpu["cell"], gpu["run"]), set()).add(gpu["node"])
    return {
        (*run, node): number
        for run, names in nodes.items()
        for number, node in enumerate(sorted(names), start=1)
    }


def _draw(
    axes: Axes, panel: Panel, cells: Sequence[Row], places: Sequence[Place], field_in: float
) -> Any:
    """Draw the fields; return the image for its colour bar."""
    columns = max(len(places), 1)
    background = Rectangle((0, 0), columns, len(cells), linewidth=0, zorder=0)
    background.set(facecolor=style.HATCHED, hatch="/////")
    axes.add_patch(background)
    nan = float("nan")
    fields = [[panel.values.get((cell["cell"], place), nan) for place in places] for cell in cells]
    low, high = _scale(panel)
    # An image, because a path for each field would make the page large.
    image = axes.imshow(
        fields,
        cmap=panel.colours,
        vmin=low,
        vmax=high,
        interpolation="none",
        zorder=1,
        aspect="auto",
        extent=(0, columns, len(cells), 0),
    )
    _write_numbers(axes, fields, low, high, field_in)
    for line, cell in enumerate(cells):
        if not completed(cell):
            style.blank_row(axes, line, line + 1, fate(cell))
    axes.tick_params(length=0, pad=1.5)
    axes.set_xlim(0, columns)
    axes.set_ylim(len(cells), 0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _tell(
    axes: Axes, panel: Panel, cells: Sequence[Row], names: Sequence[str], places: Sequence[Place]
) -> None:
    """Add a mark to each field with its cell, its GPU and its value."""
    decimals = 2 if "%" in panel.unit else None
    for line, (cell, name) in enumerate(zip(cells, names, strict=True)):
        for column, place in enumerate(places):
            if (value := panel.values.get((cell["cell"], place))) is not None:
                number = significant(value, decimals=decimals)
                text = f"{name}, node {place[0]} GPU {place[1]}: {number} {panel.unit}"
                tell(axes, text, column, line, 1.0, 1.0)


def _scale(panel: Panel) -> tuple[float, float]:
    """The lowest and highest value of the colour scale; if all values are 0, a share's
    whole range."""
    low, high = min(panel.values.values()), max(panel.values.values())
    if panel.from_zero:
        nothing = 100.0 if "%" in panel.unit else 1.0
        return 0.0, high or nothing
    return (low, high) if high - low >= 1.0 else (low - 0.5, high + 0.5)


def _write_numbers(
    axes: Axes, fields: Sequence[Sequence[float]], low: float, high: float, field_in: float
) -> None:
    """Write the number in each field if there is room for all; with a decimal if they are close."""
    shown = [value for of_line in fields for value in of_line if value == value]
    decimals = 1 if shown and max(shown) - min(shown) < 5.0 and max(shown) > 0 else 0
    widest = max((len(f"{value:.{decimals}f}") for value in shown), default=0)
    if style.LABEL_LETTER_IN * widest > field_in:
        return
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
                    fontsize=style.SMALLEST_PT,
                    color="white" if dark else "black",
                )


def _room_for_letters(field_in: float) -> bool:
    return field_in > 2 * style.LABEL_LETTER_IN


def _label_places(axes: Axes, places: Sequence[Place], field_in: float) -> None:
    """Label each GPU if there is room, else each node."""
    if _room_for_letters(field_in):
        ticks = [column + 0.5 for column in range(len(places))]
        axes.set_xticks(ticks, [str(gpu) for _, gpu in places], fontsize=style.SMALLEST_PT)
        return
    columns: dict[int, list[int]] = {}
    for column, (node, _) in enumerate(places):
        columns.setdefault(node, []).append(column)
    # If nodes have few GPUs and are narrow, only some have room for their number.
    step = max(1, round(3 * style.LABEL_LETTER_IN / (field_in * len(places) / len(columns))))
    nodes = list(columns)[::step]
    middles = [(columns[node][0] + columns[node][-1] + 1) / 2 for node in nodes]
    axes.set_xticks(middles, [str(node) for node in nodes], fontsize=style.SMALLEST_PT)


def _mark_airflow(
    axes: Axes, places: Sequence[Place], airflow: Mapping[Place, str], field_in: float
) -> None:
    """Mark each column's place in the airflow by a letter or a bar; draw lines between nodes."""
    letters = {"front": "F", "rear": "R"}
    for column, place in enumerate(places):
        where = airflow[place]
        if where in letters and _room_for_letters(field_in):
            axes.annotate(
                letters[where],
                (column + 0.5, 1.0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(0, 1),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=style.SMALLEST_PT,
            )
        elif where == "rear":
            axes.plot(
                (column, column + 1),
                (1.03, 1.03),
                color="black",
                linewidth=2.0,
                solid_capstyle="butt",
                transform=axes.get_xaxis_transform(),
                clip_on=False,
            )
        if column and place[0] != places[column - 1][0]:
            axes.axvline(column, color="black", linewidth=1.0)
            axes.axvline(column, color="white", linewidth=0.5)


#: the columns of GPUS of both directions
_LINKS = ("gpu_link_received_bytes", "gpu_link_sent_bytes")
#: column of GPUS, title, unit, factor to the unit, colour map
_PANELS = (
    ("temperature_mean_c", "Mean temperature", "°C", 1.0, "cividis"),
    ("throttle_power_share", "At the software power cap", "% of time", 100.0, "viridis"),
    ("throttle_thermal_share", "In thermal slowdown", "% of time", 100.0, "viridis"),
    ("throttle_brake_share", "In power-brake slowdown", "% of time", 100.0, "viridis"),
)


def _divide(
    tables: Tables, panels_of: Callable[[Tables, Sequence[Row]], list[Panel]], caption: str
) -> Iterator[Division[Row]]:
    """The feasible cells of a platform and model, if their GPUs have any panel."""
    for platform, model, cells in by_platform_and_model(tables.cells):
        feasible = [cell for cell in cells if cell["outcome"] != "infeasible"]
        chosen = {cell["cell"] for cell in feasible}
        gpus = [gpu for gpu in tables.gpus if gpu["cell"] in chosen]
        if panels := panels_of(tables, gpus):
            yield Division(
                f"{model} on {platform}",
                (platform, model),
                feasible,
                f"One column for each GPU, node by node, as in {caption}",
                partial(heat_map, gpus=gpus, panels=panels),
            )


def _thermal_panels(_: Tables, gpus: Sequence[Row]) -> list[Panel]:
    """The panels that have a value; that of the power brake only if any GPU was braked."""
    panels = []
    for name, title, unit, factor, colours in _PANELS:
        values = means(gpus, partial(_scaled, name, factor))
        if values and (name != "throttle_brake_share" or any(values.values())):
            panels.append(Panel(title, unit, colours, values, from_zero=factor != 1.0))
    return panels


def _scaled(name: str, factor: float, gpu: Row) -> float | None:
    return None if gpu[name] is None else gpu[name] * factor


def _traffic_panels(tables: Tables, gpus: Sequence[Row]) -> list[Panel]:
    """The panel, if it has a value."""
    durations = {(run["cell"], run["run"]): run["measured_duration_s"] for run in tables.runs}

    def gb_per_s(gpu: Row) -> float | None:
        duration_s = durations.get((gpu["cell"], gpu["run"]))
        counts = [gpu[name] for name in _LINKS]
        return None if None in counts or not duration_s else sum(counts) / duration_s / 1e9

    values = means(gpus, gb_per_s)
    return [Panel("NVLink, in and out", "GB/s", "viridis", values)] if values else []


TEMPERATURE = FigureKind(
    stem="gpus",
    subject="Temperature and throttling of every GPU",
    about=(
        "Mean temperature (°C) of every GPU, and the share of time (%) for which it was throttled."
    ),
    limits=(
        "Means over completed runs. Hatched fields have no values. A power cap under load is "
        "normal."
    ),
    most=ROWS,
    divide=partial(
        _divide,
        panels_of=_thermal_panels,
        caption="figure 17 of arXiv 2509.10371. Front and rear of the airflow are marked if the "
        "platform states them. Values are means over completed runs; hatched fields have no "
        "values. A power cap under load is normal.",
    ),
    why_not=lambda tables: reasons_of_gpus(tables.gpus, [name for name, *_ in _PANELS]),
)
TRAFFIC = FigureKind(
    stem="traffic",
    subject="Traffic of every GPU over NVLink",
    title="traffic of every GPU",
    about="What each GPU sent and received (GB/s) over NVLink.",
    limits="Hatched fields have no values.",
    most=ROWS,
    divide=partial(
        _divide,
        panels_of=_traffic_panels,
        caption="figure 5 of arXiv 2509.10371. Values are the bytes sent and received in the "
        "measured steps, divided by their duration, as means over completed runs. Hatched fields "
        "have no values.",
    ),
    why_not=lambda tables: reasons_of_gpus(tables.gpus, _LINKS),
)
