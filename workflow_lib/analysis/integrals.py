"""Integrals over time of what was read of GPUs, prepared once and then cheap over any span.

The integral from a GPU's first reading on is known at each reading, and between two readings the
quantity is a straight line; so over a span it is the difference of two such integrals, at its end
and at its start. It is the trapezoid rule with interpolated edges, as
:func:`workflow_lib.analysis.metrics.over_window` has it, without going through all readings for
each span anew: a run has hundreds of them, and each GPU ten thousands of readings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from workflow_lib.analysis.metrics import Window

#: readings of two GPUs are further apart than this on the axis where they are looked up
_BEYOND_S = 1.0

_TIME, _SENSOR = pl.col("unix_time_s"), pl.col("sensor")


@dataclass(frozen=True)
class _Readings:
    """Rows that hold all of some quantities, GPU by GPU in the order of time.

    Columns ``sensor``, ``unix_time_s``, ``key`` (one axis on which the GPUs' readings lie one after
    the other, each GPU's ``apart_s`` from the next one's), ``next_s`` (until the GPU's next
    reading, null at its last), and of each quantity itself and ``<name>_integral``.
    """

    rows: pl.DataFrame
    names: tuple[str, ...]
    origin_unix_s: float
    apart_s: float

    @staticmethod
    def of(samples: pl.DataFrame, names: Sequence[str]) -> _Readings:
        """Prepare readings.

        ``samples`` has ``sensor``, ``unix_time_s`` and ``names``, no nulls, and each GPU's rows in
        the order of time.
        """
        origin, end = samples.select(first=_TIME.min(), last=_TIME.max()).row(0)
        origin = origin or 0.0
        apart_s = (end or 0.0) - origin + 2 * _BEYOND_S
        next_s = pl.when(_SENSOR.shift(-1) == _SENSOR).then(_TIME.shift(-1) - _TIME)
        rows = samples.sort("sensor", maintain_order=True).with_columns(
            key=_SENSOR * apart_s + (_TIME - origin), next_s=next_s
        )
        # From one GPU to the next the sum goes on: only differences within a GPU mean anything.
        half_s = pl.col("next_s").fill_null(0.0) / 2
        rows = rows.with_columns(
            (half_s * (pl.col(name) + pl.col(name).shift(-1)))
            .shift(1, fill_value=0.0)
            .cum_sum()
            .alias(f"{name}_integral")
            for name in names
        )
        return _Readings(rows, tuple(names), origin, apart_s)

    @cached_property
    def edges(self) -> pl.DataFrame:
        """The first and the last row of each GPU that has one: ``sensor``, ``first_unix_s``,
        ``last_unix_s``, and of each quantity ``<name>_first`` and ``<name>_last``."""
        firsts = self.rows.filter(_SENSOR.shift(1).is_null() | (_SENSOR.shift(1) != _SENSOR))
        lasts = self.rows.filter(pl.col("next_s").is_null())
        return firsts.select(
            "sensor",
            first_unix_s=_TIME,
            last_unix_s=lasts["unix_time_s"],
            **{f"{name}_first": pl.col(name) for name in self.names},
            **{f"{name}_last": lasts[name] for name in self.names},
        )

    def until(self, moments: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        """The integral of quantities until each moment, null where readings do not reach.

        ``moments`` has ``sensor`` and ``moment_unix_s``; rows stay in their order.
        """
        if not self.rows.height:
            nothing = pl.repeat(None, moments.height, dtype=pl.Float64)
            return pl.select(nothing.alias(name) for name in names)
        since_origin = pl.col("moment_unix_s") - self.origin_unix_s
        beyond_s = self.apart_s - _BEYOND_S
        keys = moments.select(_SENSOR * self.apart_s + since_origin.clip(-_BEYOND_S / 2, beyond_s))
        found = self.rows["key"].search_sorted(keys.to_series(), side="right").cast(pl.Int64) - 1
        before = found.clip(0)
        after = (before + 1).clip(0, self.rows.height - 1)
        columns = ("sensor", "unix_time_s", "next_s")
        at = self.rows.select(
            pl.col(*columns, *names, *(f"{name}_integral" for name in names)).gather(before),
            *(pl.col(name).gather(after).alias(f"{name}_next") for name in names),
        ).with_columns(moments["moment_unix_s"], moments["sensor"].alias("wanted"))
        since, next_s = pl.col("moment_unix_s") - _TIME, pl.col("next_s")
        # A moment before a GPU's first reading is found at another's last, or before them all.
        reached = (pl.col("wanted") == _SENSOR) & (since >= 0)
        return at.select(
            pl.when(reached & (since == 0))
            .then(pl.col(f"{name}_integral"))
            .when(reached)  # beyond the last reading there is no next one, and this is null
            .then(
                pl.col(f"{name}_integral")
                + since * pl.col(name)
                + since * since / next_s * (pl.col(f"{name}_next") - pl.col(name)) / 2
            )
            .alias(name)
            for name in names
        )


class Integrals:
    """Quantities that were read of a run's GPUs, which have a number each, where they were read.

    ``samples`` has ``sensor`` and ``unix_time_s`` (s), each GPU's rows in the order of time;
    ``quantities`` are computed of its columns, and null where they were not read.
    """

    def __init__(self, samples: pl.DataFrame, quantities: Mapping[str, pl.Expr]) -> None:
        frame = samples.select(
            "sensor",
            "unix_time_s",
            *(value.cast(pl.Float64).alias(f"_{name}") for name, value in quantities.items()),
        )
        frame = frame.rename({f"_{name}": name for name in quantities})
        nulls = frame.null_count().row(0, named=True)
        whole = [name for name in quantities if not nulls[name]]
        together = [whole] if whole else []
        self._of: dict[str, _Readings] = {}
        for names in (*together, *([name] for name in quantities if nulls[name])):
            rows = frame.select("sensor", "unix_time_s", *names).drop_nulls()
            self._of |= dict.fromkeys(names, _Readings.of(rows, names))

    def over(self, spans: pl.DataFrame, quantity: str) -> pl.Series:
        """The integral (unit·s) over each span, null where readings do not reach to its ends.

        ``spans`` has ``sensor``, ``start_unix_s`` and ``end_unix_s``.
        """
        ends = [
            spans.select("sensor", moment_unix_s=edge) for edge in ("start_unix_s", "end_unix_s")
        ]
        until = self.until(pl.concat(ends), quantity)
        return until.tail(spans.height) - until.head(spans.height)

    def until(self, moments: pl.DataFrame, quantity: str) -> pl.Series:
        """The integral until each moment from a fixed one of its GPU on, so that differences are
        integrals; null where readings do not reach.

        ``moments`` has ``sensor`` and ``moment_unix_s``.
        """
        return self._of[quantity].until(moments, (quantity,)).to_series()

    def holes(self, quantity: str, longer_than_s: float) -> pl.DataFrame:
        """Where it was not read for too long: ``sensor``, ``start_unix_s`` and ``end_unix_s``."""
        return (
            self._of[quantity]
            .rows.filter(pl.col("next_s") > longer_than_s)
            .select("sensor", start_unix_s=_TIME, end_unix_s=_TIME + pl.col("next_s"))
        )

    def edges(self, quantity: str) -> pl.DataFrame:
        """The first and the last reading of each GPU that has one.

        Columns ``sensor``, ``first_unix_s``, ``last_unix_s``, ``first`` and ``last``.
        """
        return self._of[quantity].edges.select(
            "sensor",
            "first_unix_s",
            "last_unix_s",
            first=f"{quantity}_first",
            last=f"{quantity}_last",
        )

    def spans(self, quantity: str) -> dict[int, Window]:
        """From its first to its last reading, of each GPU that has one."""
        edges = self.edges(quantity).select("sensor", "first_unix_s", "last_unix_s")
        return {sensor: Window(first, last) for sensor, first, last in edges.iter_rows()}

    def looks(self, window: Window) -> dict[str, dict[int, dict[str, Any]]]:
        """What each quantity does within a window, as quantity → GPU → figures.

        ``integral``, ``readings``, ``peak``, ``lowest``, ``first_unix_s``,
        ``last_unix_s`` and ``longest_gap_s``, as :func:`metrics.over_window` has them; but the
        integral is null where readings do not reach to both ends.
        """
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for readings in {id(each): each for each in self._of.values()}.values():
            for name, of_gpus in _looks(readings, window).items():
                found[name] = of_gpus
        return found


def _looks(readings: _Readings, window: Window) -> dict[str, dict[int, dict[str, Any]]]:
    start, end = window.start_unix_s, window.end_unix_s
    rows = readings.rows
    gpus = readings.edges.select("sensor", "first_unix_s", "last_unix_s")
    inside = rows.select("sensor", "unix_time_s", *readings.names).filter(
        _TIME.is_between(start, end)
    )
    figures = inside.group_by("sensor").agg(
        pl.len().alias("readings"),
        *(pl.col(name).max().alias(f"{name}_peak") for name in readings.names),
        *(pl.col(name).min().alias(f"{name}_lowest") for name in readings.names),
    )
    gaps = (
        rows.select("sensor", "unix_time_s", "next_s")
        .filter((end > _TIME) & (start < _TIME + pl.col("next_s")))
        .group_by("sensor")
        .agg(longest_gap_s=pl.col("next_s").max())
    )
    until = [
        readings.until(gpus.select("sensor", moment_unix_s=pl.lit(edge)), readings.names)
        for edge in (start, end)
    ]
    whole = (
        gpus.with_columns(
            *(
                (until[1][name] - until[0][name]).alias(f"{name}_integral")
                for name in readings.names
            )
        )
        .join(figures, on="sensor", how="left")
        .join(gaps, on="sensor", how="left")
        .with_columns(pl.col("readings").fill_null(0))
        .to_dicts()
    )
    shared = ("readings", "first_unix_s", "last_unix_s", "longest_gap_s")
    return {
        name: {
            row["sensor"]: {
                **{figure: row[figure] for figure in shared},
                **{figure: row[f"{name}_{figure}"] for figure in ("integral", "peak", "lowest")},
            }
            for row in whole
        }
        for name in readings.names
    }
