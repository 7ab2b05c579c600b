"""Tests whether a run was steady over its measured steps in step time, power and temperature.

A run begins with compilation, allocation and autotuning, and its GPUs take minutes to warm up. The
protocol's warm-up must be long enough for that. All measured steps count, and they are the same in
every repeat of a cell, so that repeats measure the same thing. This module tests whether they were
steady. For each quantity, :func:`workflow_lib.intervals.change.change` estimates the change of a
straight line from the first step to the last, and the bend of a parabola. Each has a margin that
noise seldom exceeds. The first two values are also compared with the others. What matters is 0.5 %
of step time or power, or 1 °C. A run is steady if the whole interval of each change, change ±
margin, lies within that; it is not steady if the whole interval of one lies beyond it; otherwise it
is not told. The change of the straight line is recorded with its margin.

The test works on groups of equally many steps (:class:`Block`). A group lasts at least one second,
because boards average power over a second, and at least two sample periods. There are at most 200
groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from workflow_lib.analysis import metrics
from workflow_lib.analysis.integrals import Floats
from workflow_lib.analysis.known import Values, Why, known
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.nodes import mean_over_spans
from workflow_lib.analysis.recordings import Recordings
from workflow_lib.analysis.steps import Steps
from workflow_lib.intervals.change import FEWEST_VALUES, Estimate, change
from workflow_lib.records.cell import Cell
from workflow_lib.records.reasons import Reason
from workflow_lib.words import counted

#: the largest changes that do not matter: of step time and power as shares of their mean, of
#: temperature in °C
STEP_TIME_TOLERANCE = 0.005
POWER_TOLERANCE = 0.005
TEMPERATURE_TOLERANCE_C = 1.0

#: how many standard deviations both of the first two values may lie from the others; with normal
#: noise, a standard deviation is 1.4826 times the median absolute deviation
_START_DEVIATIONS = 6.0
_NORMAL = 1.4826
_MOST_BLOCKS = 200
_SHORTEST_BLOCK_S = 1.0
_SHORTEST_BLOCK_PERIODS = 2.0
#: of a drift and its margin, as shares and in °C: to a thousandth of what matters and less, and far
#: from the digits in which processors differ
_DECIMALS = 6


@dataclass(frozen=True)
class Block:
    """A group of consecutive steps: its first step, its window, and the median time of
    its steps."""

    first_step: int
    window: Window
    step_time_s: float


@dataclass(frozen=True)
class Series:
    """A quantity over groups of steps. A change larger than ``tolerance`` matters: a share of the
    mean if ``relative``, else in the quantity's unit."""

    values: Sequence[float]
    tolerance: float
    relative: bool


@dataclass(frozen=True)
class Drift:
    """How a series changes from its first value to its last, in the unit of ``tolerance``."""

    trend: Estimate
    bend: Estimate
    #: the nearer of the first two values minus the median of the others, and the margin of noise
    start: Estimate
    tolerance: float

    @property
    def steady(self) -> bool | None:
        """Whether the changes are surely within the tolerance, or one is surely beyond it; None if
        neither is told."""
        estimates = self.trend, self.bend, self.start
        if any(estimate.is_beyond(self.tolerance) for estimate in estimates):
            return False
        # The margin of the start is that of single values, so it cannot show a small start.
        no_start = abs(self.start.change) <= max(self.start.margin, self.tolerance)
        is_within = self.trend.is_within(self.tolerance) and self.bend.is_within(self.tolerance)
        return True if is_within and no_start else None


def blocks_of(steps: pl.DataFrame, sample_rate_hz: float) -> list[Block]:
    """The groups of a run's steps, warm-up included.

    ``steps`` has ``step``, ``started_unix_s`` and ``ended_unix_s`` of every rank. If the steps do
    not divide evenly into groups, the first ones are left out.
    """
    times = (
        steps.group_by("step")
        .agg(pl.col("started_unix_s").min(), pl.col("ended_unix_s").max())
        .sort("step")
        .rows()
    )
    if not times:
        return []
    shortest_s = max(_SHORTEST_BLOCK_S, _SHORTEST_BLOCK_PERIODS / sample_rate_hz)
    typical_s = metrics.median(ended - started for _, started, ended in times)
    size = max(math.ceil(len(times) / _MOST_BLOCKS), 1)
    if typical_s > 0:
        size = max(size, math.ceil(shortest_s / typical_s))
    blocks = []
    for first in range(len(times) % size, len(times), size):
        part = times[first : first + size]
        blocks.append(
            Block(
                part[0][0],
                Window(part[0][1], part[-1][2]),
                metrics.median(ended - started for _, started, ended in part),
            )
        )
    return blocks


def drift(series: Series) -> Drift | None:
    """How a series changes; None if it has too few values, or if it is relative and
    its mean is 0."""
    if len(series.values) < FEWEST_VALUES:
        return None
    level = abs(float(np.mean(series.values))) if series.relative else 1.0
    if level == 0:
        return None
    values = np.array(series.values) / level
    changes = change(values.tolist())
    return Drift(changes.trend, changes.bend, _start(values), series.tolerance)


def _start(values: Floats) -> Estimate:
    """How far both of the first two values lie from the others, as after too short a warm-up.

    A line or a parabola takes so short a change for noise. The nearer of the two values counts,
    because one alone may be an outlier. The result is 0 if they lie on different sides of the
    others' median. The margin comes from the median absolute deviation of the others, which is
    robust to outliers.
    """
    rest = values[2:]
    median = float(np.median(rest))
    deviation = float(np.median(np.abs(rest - median)))
    first, second = (float(value) - median for value in values[:2])
    start = min(first, second, key=abs) if first * second > 0 else 0.0
    return Estimate(start, _START_DEVIATIONS * _NORMAL * deviation)


def steady_state(cell: Cell, steps: Steps, recordings: Recordings | None, unknown: Why) -> Values:
    """The measures of how steady the measured steps were.

    ``unknown`` is why telemetry is incomplete, or "". Without power and temperature a run is never
    called steady, because step time alone cannot show it.
    """
    every = blocks_of(steps.rows, cell.telemetry.sample_rate_hz)
    blocks = [block for block in every if block.first_step >= steps.first]
    power, power_reason = _series(cell, blocks, recordings, unknown, "power_w")
    temperature, temperature_reason = _series(cell, blocks, recordings, unknown, "temperature_c")
    step_time = Series([block.step_time_s for block in blocks], STEP_TIME_TOLERANCE, True)
    values: Values = {}
    drifts, reasons = [], [power_reason, temperature_reason]
    for name, quantity, series, unread in (
        ("step_time_drift", "step time", step_time, ""),
        ("power_drift", "power", power, power_reason),
        ("temperature_drift_c", "temperature", temperature, temperature_reason),
    ):
        series_drift = None if series is None else drift(series)
        why = unread if series is None or series_drift else _why_no_drift(series, quantity)
        drifts.append(series_drift)
        reasons.append(why)
        plain, unit = name.removesuffix("_c"), "_c" if name.endswith("_c") else ""
        trend = series_drift and series_drift.trend
        values[name] = known(trend and _rounded(trend.change), why)
        values[f"{plain}_margin{unit}"] = known(trend and _rounded(trend.margin), why)
    verdicts = [None if own is None else own.steady for own in drifts]
    steady = False if False in verdicts else True if all(verdicts) else None
    values["steady"] = known(steady, next(filter(None, reasons), "") or _within_noise(drifts))
    return values


def _why_no_drift(series: Series, quantity: str) -> Reason:
    """Why :func:`drift` tells nothing of a series."""
    if len(series.values) < FEWEST_VALUES:
        blocks = counted(len(series.values), "block")
        return Reason("too_few_blocks", blocks=blocks, fewest_values=FEWEST_VALUES)
    return Reason("mean_is_zero", quantity=quantity)


def _rounded(value: float) -> float:
    return round(value, _DECIMALS) + 0.0  # which -0.0 is not


def _within_noise(drifts: Sequence[Drift | None]) -> Reason:
    """Which quantities may have changed by more than matters, and what would tell."""
    named = zip(("step time", "power", "temperature"), drifts, strict=True)
    noisy = [what for what, own in named if own is not None and own.steady is None]
    return Reason("drift_within_noise", measures=" and ".join(noisy))


def _series(
    cell: Cell, blocks: Sequence[Block], recordings: Recordings | None, unknown: Why, quantity: str
) -> tuple[Series | None, Why]:
    """The mean over all GPUs of power or temperature in each group of steps, or None and why."""
    if unknown or recordings is None:
        return None, unknown
    size = cell.hardware.gpus_per_package if quantity == "power_w" else None
    windows = [block.window for block in blocks]
    sensors = recordings.sensors(size)
    if not sensors:
        return None, Reason("no_package_sensor")
    means = mean_over_spans(recordings, sensors, quantity, windows)
    lacking = np.flatnonzero(np.isnan(means).any(axis=1))
    if lacking.size:
        node, _ = recordings.place(sensors[lacking[0]])
        return None, Reason("not_read_in_steps", node=node, quantity=quantity)
    over_gpus = (means.sum(axis=0) / len(sensors)).tolist()
    if quantity == "power_w":
        return Series(over_gpus, POWER_TOLERANCE, relative=True), ""
    return Series(over_gpus, TEMPERATURE_TOLERANCE_C, relative=False), ""
