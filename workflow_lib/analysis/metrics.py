"""The formulas of measures: pure functions on samples, step times and scalars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl

from workflow_lib.records.columns import Kind
from workflow_lib.telemetry.validity.trapezoid import part_within

# NVML clocks-event-reasons bits (nvml.h, nvmlClocksEventReason*).
POWER_CAP = 0x4
HARDWARE_SLOWDOWN = 0x8
SOFTWARE_THERMAL = 0x20
HARDWARE_THERMAL = 0x40
POWER_BRAKE = 0x80


@dataclass(frozen=True)
class Window:
    """A span of wall-clock time, in seconds since the epoch."""

    start_unix_s: float
    end_unix_s: float

    @property
    def duration_s(self) -> float:
        """Its length in seconds."""
        return self.end_unix_s - self.start_unix_s


def over_window(
    samples: pl.DataFrame, quantity: str, window: Window, kind: Kind = "point"
) -> dict[int, dict[str, Any]]:
    """Statistics of a quantity within a window, for each GPU that has a reading of it.

    ``samples`` has ``gpu`` and ``unix_time_s`` (s), in the order of time; ``quantity`` is a column,
    null where it was not read. The statistics of a GPU, with u for the quantity's unit:

    - ``integral`` (u·s): by the trapezoid rule (:mod:`workflow_lib.telemetry.validity.trapezoid`);
      or, if ``kind`` says that a reading is the mean since the one before, of that mean
    - ``increase`` (u): v(end) − v(start), for cumulative counters
    - ``readings``, ``peak``, ``lowest`` (u): how many lie within the window, and the highest and
      lowest of them
    - ``first_unix_s``, ``last_unix_s``: the times of the first and the last reading, inside the
      window or not
    - ``longest_gap_s``: the longest time between two readings, of those gaps that overlap the
      window
    - ``falls``: whether the quantity ever decreases there
    """
    read = samples.select("gpu", "unix_time_s", pl.col(quantity).cast(pl.Float64)).drop_nulls()
    readings: dict[int, list[tuple[float, float]]] = {}
    for gpu, unix_time_s, value in read.iter_rows():
        readings.setdefault(gpu, []).append((unix_time_s, value))
    return {gpu: _of_gpu(of_gpu, window, kind) for gpu, of_gpu in sorted(readings.items())}


def _of_gpu(readings: Sequence[tuple[float, float]], window: Window, kind: Kind) -> dict[str, Any]:
    start, end = window.start_unix_s, window.end_unix_s
    inside = [value for unix_time_s, value in readings if start <= unix_time_s <= end]
    integrals, increases, gaps_s, falls = [], [], [], False
    for reading, following in pairwise(readings):
        part = part_within(reading, following, start, end)
        if part is not None:
            value = following[1] if kind == "mean_since_last" else part.middle
            integrals.append(part.duration_s * value)
            increases.append(part.duration_s * part.slope)
            gaps_s.append(following[0] - reading[0])
            falls |= part.slope < 0
    return {
        "integral": math.fsum(integrals),
        "increase": math.fsum(increases),
        "readings": len(inside),
        "peak": max(inside, default=None),
        "lowest": min(inside, default=None),
        "first_unix_s": readings[0][0],
        "last_unix_s": readings[-1][0],
        "longest_gap_s": max(gaps_s, default=None),
        "falls": falls,
    }


def _any_bit(mask: int) -> pl.Expr:
    return (pl.col("event_reasons") & mask) != 0


#: What a sample's event bits say, as 0 or 1. NVML sets the slowdown bit for heat, for an external
#: brake and for its own fast power protection, so a slowdown that is not due to heat is due to
#: power.
EVENTS: Mapping[str, pl.Expr] = {
    "power_capped": _any_bit(POWER_CAP),
    "thermally_slowed": _any_bit(SOFTWARE_THERMAL | HARDWARE_THERMAL),
    "power_braked": _any_bit(POWER_BRAKE)
    | (_any_bit(HARDWARE_SLOWDOWN) & ~_any_bit(HARDWARE_THERMAL)),
}


def step_times(steps: pl.DataFrame) -> list[float]:
    """Seconds of each measured step: from its first rank's start to its last rank's end.

    ``steps`` has ``step``, ``started_unix_s`` and ``ended_unix_s`` of every rank. So the time of a
    step includes waiting for the slowest rank, and skew between the clocks of nodes.
    """
    return (
        steps.group_by("step")
        .agg(duration=pl.col("ended_unix_s").max() - pl.col("started_unix_s").min())
        .sort("step")["duration"]
        .to_list()
    )


def median(values: Iterable[float]) -> float:
    """The median; for an even number of values the mean of the two in the middle."""
    return quantile(sorted(values), 0.5)


def interquartile_range(values: Iterable[float]) -> float:
    """Upper minus lower quartile, both interpolated linearly between ranks (Hyndman and Fan's
    definition 7, The American Statistician 50(4), 1996)."""
    ordered = sorted(values)
    return quantile(ordered, 0.75) - quantile(ordered, 0.25)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted, non-empty values at ``share`` (0 to 1), by Hyndman and Fan's
    definition 7."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
