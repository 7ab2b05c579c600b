"""Like figure 17 of arXiv 2509.10371: a heat map of every GPU's temperature and
throttling by cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from workflow_lib.report.cells import Row
from workflow_lib.report.figures.gaps import reasons_of_gpus
from workflow_lib.report.figures.heat_map import ROWS, Panel, heat_map, means
from workflow_lib.report.figures.kind import Division, FigureKind, by_platform_and_model
from workflow_lib.report.tables import Tables

#: column of GPUS, title, unit, factor to the unit, colour map
_PANELS = (
    ("temperature_mean_c", "Mean temperature", "°C", 1.0, "cividis"),
    ("throttle_power_share", "At the software power cap", "% of time", 100.0, "viridis"),
    ("throttle_thermal_share", "In thermal slowdown", "% of time", 100.0, "viridis"),
    ("throttle_brake_share", "In power-brake slowdown", "% of time", 100.0, "viridis"),
)


def _divide(tables: Tables) -> Iterator[Division[Row]]:
    """The feasible cells of a platform and model."""
    for platform, model, cells in by_platform_and_model(tables.cells):
        feasible = [cell for cell in cells if cell["outcome"] != "infeasible"]
        chosen = {cell["cell"] for cell in feasible}
        gpus = [gpu for gpu in tables.gpus if gpu["cell"] in chosen]
        if panels := _panels(gpus):
            yield Division(
                f"{model} on {platform}",
                (platform, model),
                feasible,
                "One column for each GPU, node by node, as in figure 17 of arXiv 2509.10371. Front "
                "and rear of the airflow are marked if the platform states them. Values are means "
                "over completed runs; hatched fields have no values. A power cap under load is "
                "normal.",
                partial(heat_map, gpus=gpus, panels=panels),
            )


def _why_not(tables: Tables) -> str:
    """Why there is no such figure."""
    return reasons_of_gpus(tables.gpus, [name for name, *_ in _PANELS])


def _panels(gpus: Sequence[Row]) -> list[Panel]:
    """The panels that have a value; that of the power brake only if any GPU was braked."""
    panels = []
    for name, title, unit, factor, colours in _PANELS:
        values = means(gpus, partial(_scaled, name, factor))
        if values and (name != "throttle_brake_share" or any(values.values())):
            panels.append(Panel(title, unit, colours, values, from_zero=factor != 1.0))
    return panels


def _scaled(name: str, factor: float, gpu: Row) -> float | None:
    return None if gpu[name] is None else gpu[name] * factor


KIND = FigureKind(
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
    divide=_divide,
    why_not=_why_not,
)
