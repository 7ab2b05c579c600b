"""Heat maps of every GPU: temperature and throttling, as figure 17 of arXiv 2509.10371, and traffic
over NVLink, as figure 5.

That figure 5 shows PCIe as well. Its counters have 32 bits, which overflow in a fraction of a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from workflow_lib.report.figures.cell_names import Row
from workflow_lib.report.figures.heat_map import ROWS, Panel, heat_map, means
from workflow_lib.report.figures.kind import (
    Division,
    FigureKind,
    by_platform_and_model,
    reasons_of_gpus,
)
from workflow_lib.report.figures.tables import Tables

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
