"""From which step on a run is steady: in step time, in power and in temperature.

A run begins with compilation, allocation and autotuning, and its GPUs take minutes to warm up. The
steady state begins with the earliest step from which on, to the end, each of the three

- has no trend: the slope of Theil and Sen (the median of all pairs' slopes: Theil, Indagationes
  Mathematicae 12, 1950; Sen, Journal of the American Statistical Association 63(324), 1968) over
  the whole length changes it by no more than its tolerance;
- has one level: the medians of both halves lie no further apart than that;
- is on this level with its first step and with the median of its last five. Medians over all
  would overlook a short start, and a late change.

What oscillates about one level is steady, as a checkpoint every so many steps is. A quarter of the
run must remain, and five blocks: any drift, however fast, is small over little enough.

Steps are looked at in blocks of equally many, which last a second at least, because boards average
power over a second, and two sample periods. There are 200 blocks at most, so that all pairs'
slopes are few however long the run was; an onset is then known to half a percent of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from workflow_lib.analysis import metrics
from workflow_lib.analysis.integrals import Floats
from workflow_lib.analysis.known import Values, known
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.nodes import mean_over_spans
from workflow_lib.analysis.recordings import Recordings
from workflow_lib.analysis.steps import Steps
from workflow_lib.records import Cell
from workflow_lib.words import counted

#: tolerances: of step time and power as shares of their level, of temperature in °C
STEP_TIME_TOLERANCE = 0.02
POWER_TOLERANCE = 0.02
TEMPERATURE_TOLERANCE_C = 2.0

#: fewer blocks than this tell no trend, and less than this share of all is only the end of a drift
FEWEST_BLOCKS = 5
_LEAST_SHARE = 0.25
_MOST_BLOCKS = 200
_SHORTEST_BLOCK_S = 1.0
_SHORTEST_BLOCK_PERIODS = 2.0


@dataclass(frozen=True)
class Block:
    """Consecutive steps: the first of them, when they were, and their median time."""

    first_step: int
    window: Window
    step_time_s: float


@dataclass(frozen=True)
class Series:
    """A quantity over blocks, and how far it may change: a share of its level, or an amount."""

    values: Sequence[float]
    tolerance: float
    relative: bool


def blocks_of(steps: pl.DataFrame, sample_rate_hz: float) -> list[Block]:
    """The blocks of a run's steps, warm-up included.

    ``steps`` has ``step``, ``started_unix_s`` and ``ended_unix_s`` of every rank. Steps that are
    left over belong to no block: the first ones.
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


def onset(series: Sequence[Series]) -> int | None:
    """The earliest block from which on all series are steady to their end; None if there is none.

    All series have one value a block. From the onset on at least :data:`FEWEST_BLOCKS` and a
    quarter of all remain.
    """
    steady = [_steady_from(each) for each in series]
    common = set.intersection(*steady) if steady else set()
    return min(common, default=None)


def drift(series: Series) -> float | None:
    """How much a series changes in all, by the slope of Theil and Sen: a share of its median, or
    in its own unit; None where fewer than two values, or a median of 0, tell nothing.
    """
    values = series.values
    if len(values) < 2:
        return None
    change = _median(_slopes(values)) * (len(values) - 1)
    if not series.relative:
        return change
    level = metrics.median(values)
    return change / level if level else None


def steady_state(
    cell: Cell, steps: Steps, recordings: Recordings | None, unknown: str
) -> tuple[Steps, Values]:
    """The steps, counted from the onset of the steady state on, and the measures of it.

    ``unknown`` is why telemetry is not all there, or empty. Without power and temperature nothing
    is said to be steady, since step time alone cannot tell: then, and where there is no steady
    state, all measured steps count.
    """
    blocks = blocks_of(steps.rows, cell.telemetry.sample_rate_hz)
    power, power_reason = _series(cell, blocks, recordings, unknown, "power_w")
    temperature, temperature_reason = _series(cell, blocks, recordings, unknown, "temperature_c")
    step_time = Series([block.step_time_s for block in blocks], STEP_TIME_TOLERANCE, True)
    reason = power_reason or temperature_reason
    if len(blocks) < FEWEST_BLOCKS:
        reason = (
            f"the run's {steps.rows['step'].n_unique()} steps make "
            f"{counted(len(blocks), 'block')} of a second or more; {FEWEST_BLOCKS} are the fewest "
            "that tell a trend"
        )
    found = None
    values: Values = {"steady": (None, reason)}
    if power is not None and temperature is not None and not reason:
        found = onset([step_time, power, temperature])
        values["steady"] = known(found is not None)
        reason = "step time, power and temperature never became steady together"
    began = None if found is None else blocks[found].first_step
    values["steady_from_step"] = known(began, reason)
    if found is not None:
        steps = steps.counted_from(blocks[found].first_step)
    counting = [place for place, b in enumerate(blocks) if b.first_step >= steps.first]
    for name, series, why in (
        ("step_time_drift", step_time, ""),
        ("power_drift", power, power_reason),
        ("temperature_drift_c", temperature, temperature_reason),
    ):
        value = None
        if series is not None:
            part = [series.values[place] for place in counting]
            value = drift(Series(part, series.tolerance, series.relative))
        blocks_told = counted(len(counting), "block")
        few = f"the measured steps make {blocks_told} of a second or more, too few"
        values[name] = known(value, why or few)
    return steps, values


def _series(
    cell: Cell, blocks: Sequence[Block], recordings: Recordings | None, unknown: str, quantity: str
) -> tuple[Series | None, str]:
    """The mean over all GPUs of power or temperature in each block, or None and why."""
    if unknown or recordings is None:
        return None, unknown
    size = cell.hardware.gpus_per_package if quantity == "power_w" else None
    windows = [block.window for block in blocks]
    sensors = recordings.sensors(size)
    if not sensors:
        return None, "no GPU that a rank used reports its package's power"
    means = mean_over_spans(recordings, sensors, quantity, windows)
    lacking = np.flatnonzero(np.isnan(means).any(axis=1))
    if lacking.size:
        node, _ = recordings.place(sensors[lacking[0]])
        return None, f"{node}: {quantity} was not read throughout all steps"
    over_gpus = (means.sum(axis=0) / len(sensors)).tolist()
    if quantity == "power_w":
        return Series(over_gpus, POWER_TOLERANCE, relative=True), ""
    return Series(over_gpus, TEMPERATURE_TOLERANCE_C, relative=False), ""


def _steady_from(series: Series) -> set[int]:
    """The places from which on to its end a series is steady."""
    values, count = series.values, len(series.values)
    slopes = _slopes(values)
    found = set()
    fewest = max(FEWEST_BLOCKS, math.ceil(_LEAST_SHARE * count))
    for i in range(count - fewest + 1):
        rest = values[i:]
        level, half = metrics.median(rest), len(rest) // 2
        allowed = series.tolerance * (abs(level) if series.relative else 1.0)
        changes = (
            metrics.median(rest[-half:]) - metrics.median(rest[:half]),
            rest[0] - level,
            metrics.median(rest[-FEWEST_BLOCKS:]) - level,
        )
        if any(abs(change) > allowed for change in changes):
            continue
        before = i * (count - 1) - i * (i - 1) // 2  # pairs whose first value is an earlier one
        if abs(_median(slopes[before:]) * (len(rest) - 1)) <= allowed:
            found.add(i)
    return found


def _slopes(values: Sequence[float]) -> Floats:
    """Those of all pairs, in the order of the first value of each."""
    first, second = np.triu_indices(len(values), 1)
    of_places = np.array(values)
    slopes: Floats = (of_places[second] - of_places[first]) / (second - first)
    return slopes


def _median(values: Floats) -> float:
    """:func:`metrics.median`, without ordering all of them."""
    middle = [(values.size - 1) // 2, values.size // 2]
    return metrics.median(np.partition(values, middle)[middle].tolist())
