"""The series and steps of cells over time, for their pages.

Numbers are whole multiples of a panel's smallest unit, and each is stored as its difference from
the one before, so that a page with hundreds of cells stays small. Null stays null, and is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from workflow_lib.report.figures.tables import by_cell

#: the most points of a chart; SERIES has fewer, and more steps are joined into groups
MOST_POINTS = 240


@dataclass(frozen=True)
class Curve:
    """A line of a panel: the mean over GPUs of a column of SERIES."""

    legend: str
    column: str
    #: only GPUs in this place of the airflow
    airflow: str | None = None


@dataclass(frozen=True)
class Panel:
    """A chart over time; the band of its first curve reaches from the lowest to the highest GPU."""

    title: str
    unit: str
    #: column × ``factor`` is in ``unit``; points are kept to 1/``scale`` of the unit
    factor: int
    scale: int
    curves: tuple[Curve, ...]
    band: bool = True


PANELS = (
    Panel("Power", "W per GPU", 1, 1, (Curve("mean over GPUs", "power_w"),)),
    Panel(
        "Core temperature",
        "°C",
        1,
        10,
        (
            Curve("mean over GPUs", "temperature_c"),
            Curve("mean of the front GPUs", "temperature_c", "front"),
            Curve("mean of the rear GPUs", "temperature_c", "rear"),
        ),
    ),
    Panel("SM clock", "MHz", 1, 1, (Curve("mean over GPUs", "sm_clock_mhz"),)),
    Panel(
        "Throttling",
        "% of readings",
        100,
        1,
        (
            Curve("at the power cap", "power_capped_share"),
            Curve("in thermal slowdown", "thermally_slowed_share"),
            Curve("braked", "power_braked_share"),
        ),
        band=False,
    ),
)
#: SERIES keeps at most three decimals, and whole thousandths add up to the same in any order
_STORED = 1000
#: every curve, by a unique name
_CURVES = {f"curve {panel.title} {c.legend}": c for panel in PANELS for c in panel.curves}


def series_of(series: pl.DataFrame | None) -> dict[str, dict[str, Any]]:
    """The series of each cell that has rows of SERIES, which ``series`` are.

    Each holds ``run``; ``gpus``, their number; ``from`` and ``every``, the middle of its first
    interval and the length of intervals, in s; ``points``, the number of intervals; and ``panels``,
    as in :data:`PANELS`. A panel is null without any value, else it has the number of GPUs that
    gave one (``of``), and ``lines``, ``low`` and ``high`` of the intervals. A line is null where
    one of these GPUs gave no reading, because the mean would be of other GPUs. Low and high are of
    the GPUs that gave one.
    """
    return {cell: _series(rows) for cell, rows in by_cell(series).items()}


def _series(rows: pl.DataFrame) -> dict[str, Any]:
    """The series of one cell from its rows of SERIES."""
    began = pl.col("elapsed_s").min()
    every = pl.col("interval_s").first()
    place = ((pl.col("elapsed_s") - began) / every).round().cast(pl.Int64)
    whole = rows.select(
        "node",
        "gpu",
        place.alias("place"),
        *(_whole(curve).alias(name) for name, curve in _CURVES.items()),
    )
    names = list(_CURVES)
    gpus = whole.group_by("node", "gpu").agg(pl.col(names).is_not_null().any())
    points = (
        whole.group_by("place")
        .agg(
            pl.col(names).sum().name.suffix(" sum"),
            pl.col(names).count().name.suffix(" count"),
            pl.col(names).min().name.suffix(" low"),
            pl.col(names).max().name.suffix(" high"),
        )
        .sort("place")
    )
    # An interval without any reading has no row.
    every_place = pl.DataFrame({"place": range(points["place"][-1] + 1)})
    counts = gpus.select(pl.col(names).sum()).row(0, named=True)
    values = every_place.join(points, on="place", how="left", maintain_order="left")
    first = rows.select(began, every, "run").row(0, named=True)
    return {
        "run": first["run"],
        "gpus": len(gpus),
        "from": round(first["elapsed_s"], 3),
        "every": round(first["interval_s"], 6),
        "points": len(values),
        "panels": [_panel(panel, values.to_dict(as_series=False), counts) for panel in PANELS],
    }


def _whole(curve: Curve) -> pl.Expr:
    value = (pl.col(curve.column).fill_nan(None) * _STORED).round().cast(pl.Int64)
    return value if curve.airflow is None else pl.when(airflow=curve.airflow).then(value)


def _panel(
    panel: Panel, values: Mapping[str, list[Any]], counts: Mapping[str, int]
) -> dict[str, Any] | None:
    """One panel of a cell; ``counts`` are the GPUs that have a value of each curve."""
    curves = {name: curve for name, curve in _CURVES.items() if curve in panel.curves}
    if not any(counts[name] for name in curves):
        return None
    # Front and rear are only drawn together.
    apart = all(counts[name] for name in curves)
    drawn: dict[str, Any] = {"of": max(counts[name] for name in curves)}
    drawn["lines"] = [
        deltas(
            _scaled(total, panel, count) if count == counts[name] else None
            for total, count in zip(values[f"{name} sum"], values[f"{name} count"], strict=True)
        )
        if counts[name] and (apart or not curve.airflow)
        else None
        for name, curve in curves.items()
    ]
    if panel.band and drawn["of"] > 1:
        first = next(iter(curves))
        for end in ("low", "high"):
            drawn[end] = deltas(_scaled(value, panel) for value in values[f"{first} {end}"])
    return drawn


def _scaled(thousandths: int | None, panel: Panel, count: int = 1) -> int | None:
    """A value in the panel's smallest unit, halves rounded up; ``thousandths`` is a sum over
    ``count`` GPUs."""
    if thousandths is None:
        return None
    # Whole numbers give the same result in any order and on any machine.
    parts = _STORED * count
    return (2 * thousandths * panel.factor * panel.scale + parts) // (2 * parts)


def deltas(values: Iterable[int | None]) -> list[int | None]:
    """Each value minus the one before it that is not null; the first stays as it is."""
    last = 0
    differences: list[int | None] = []
    for value in values:
        differences.append(None if value is None else value - last)
        last = last if value is None else value
    return differences


def steps_of(steps: pl.DataFrame | None, run: int) -> dict[str, Any] | None:
    """A run's steps from rows of STEP_TIMES of its cell; None if none has a time.

    ``starts`` and ``times`` are in 1/``scale`` s, as :func:`deltas`. ``each`` is how many steps a
    point stands for; if more than one, ``times`` are means, and ``low`` and ``high`` are added.
    ``warmup`` is how many points are of the warm-up. ``counted`` is when the first step begins that
    measures are taken over, in s.
    """
    if steps is None:
        return None
    known = steps.filter((pl.col("run") == run) & pl.col("elapsed_s").is_not_null()).sort("step")
    times = known["step_time_s"].drop_nulls()
    typical = times.median()
    if not len(times) or not isinstance(typical, float):
        return None
    # Keep four digits of a typical step.
    scale = 10 ** (3 - math.floor(math.log10(typical)) if typical > 0 else 3)
    scale = max(scale, 1)
    per_point = -(-len(known) // MOST_POINTS)
    rows = known.select("phase", "elapsed_s", "step_time_s", "counted").rows()
    # Warm-up and measured steps are never joined.
    parts = [
        [of_phase[place : place + per_point] for place in range(0, len(of_phase), per_point)]
        for phase in ("warmup", "measured")
        if (of_phase := [row for row in rows if row[0] == phase])
    ]
    groups = [group for part in parts for group in part]
    spans: list[Sequence[float | None]] = [[row[2] for row in group] for group in groups]
    counted = next((row[1] for row in rows if row[3]), None)
    series = {
        "scale": scale,
        "each": per_point,
        "warmup": sum(group[0][0] == "warmup" for group in groups),
        "counted": None if counted is None else round(counted, 3),
        "starts": deltas(round(group[0][1] * scale) for group in groups),
        "times": deltas(_mean(of_group, scale) for of_group in spans),
    }
    if per_point > 1:
        for name, end in (("low", min), ("high", max)):
            ends = (end((v for v in of_group if v is not None), default=None) for of_group in spans)
            series[name] = deltas(None if value is None else round(value * scale) for value in ends)
    return series


def _mean(values: Sequence[float | None], scale: int) -> int | None:
    present = [value for value in values if value is not None]
    return round(math.fsum(present) / len(present) * scale) if len(present) == len(values) else None
