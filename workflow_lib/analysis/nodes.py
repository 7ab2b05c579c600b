"""The GPUs of a node over the measured steps, and the node's idle power before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from workflow_lib.analysis import metrics
from workflow_lib.analysis.gpus import EVENTS, READINGS, Gpu, empty_row, is_power_sensor
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.samples import read_rows
from workflow_lib.records import (
    GPU_SAMPLES,
    Hardware,
    RecordError,
    RunPaths,
    TelemetryStart,
    read_record,
)

#: shorter windows have no trustworthy power: boards report averages over about a second
_SHORTEST_IDLE_S = 1.0


@dataclass(frozen=True)
class Node:
    """The GPUs of a node that ranks used."""

    #: as :data:`~workflow_lib.records.GPUS` has them, less ``cell`` and ``run``
    rows: tuple[dict[str, Any], ...]
    #: of its power-reporting GPUs together; null with ``idle_reason``
    idle_power_w: float | None
    idle_reason: str
    #: of the same GPUs, for each phase of the steps; where a row lacks energy_j it means nothing
    phase_energy_j: Mapping[str, float] = field(default_factory=dict)


def reduce_node(
    paths: RunPaths,
    node: str,
    gpus: Sequence[int],
    hardware: Hardware,
    window: Window,
    training_started_unix_s: float,
    idle_baseline_s: float,
    phases: Mapping[str, Sequence[Window]],
) -> Node:
    """Reduce the samples of a node's ``gpus`` to what they did within the measured ``window``.

    ``training_started_unix_s`` is when the first rank of the run started: until then GPUs idled,
    and for ``idle_baseline_s`` from the first sample on the node's CPUs did, too. ``phases`` are
    parts of the measured steps whose energy is wanted by itself.
    A node without telemetry has null measures. Raises RecordError where a file is damaged.
    """
    absent = [
        path.name
        for path in (paths.telemetry_start(node), paths.gpu_samples(node))
        if not path.is_file()
    ]
    if absent:
        reason = f"telemetry/{absent[0]} is missing"
        return Node(tuple(empty_row(node, gpu, hardware, reason) for gpu in gpus), None, reason)
    start = read_record(paths.telemetry_start(node), TelemetryStart)
    samples = read_rows(paths.gpu_samples(node), GPU_SAMPLES, ("unix_time_s", "gpu"))
    _check_order(paths, node, samples)
    looks = _look(samples, READINGS, window)
    readers = [Gpu(node, gpu, start, window, looks) for gpu in gpus]
    if not all(reader.has_throttle_counters() for reader in readers):
        looks.update(_look(samples, EVENTS, window))
    rows = tuple(reader.row(hardware) for reader in readers)
    sensors = [gpu for gpu in gpus if is_power_sensor(gpu, hardware)]
    return Node(
        rows,
        *_idle_power(samples, start, sensors, training_started_unix_s, idle_baseline_s),
        {phase: _energy_j(samples, sensors, windows) for phase, windows in phases.items()},
    )


def _energy_j(samples: pl.DataFrame, sensors: Sequence[int], windows: Sequence[Window]) -> float:
    """The energy of power-reporting GPUs over several windows together, by the trapezoid rule."""
    lazy = samples.lazy().filter(pl.col("gpu").is_in(list(sensors)))
    looks = [metrics.over_window(lazy, pl.col("power_w"), window) for window in windows]
    return float(sum(look["integral"].sum() for look in pl.collect_all(looks)))


def _look(
    samples: pl.DataFrame, quantities: Mapping[str, pl.Expr], window: Window
) -> dict[str, dict[int, dict[str, Any]]]:
    """:func:`metrics.over_window` of each quantity, as quantity → GPU → row."""
    lazy = samples.lazy()
    frames = pl.collect_all(
        [metrics.over_window(lazy, value, window) for value in quantities.values()]
    )
    return {
        name: {row["gpu"]: row for row in frame.iter_rows(named=True)}
        for name, frame in zip(quantities, frames, strict=True)
    }


def _check_order(paths: RunPaths, node: str, samples: pl.DataFrame) -> None:
    time = pl.col("unix_time_s")
    back = samples.filter((time < time.shift(1)).over("gpu")).select("gpu", "unix_time_s")
    if back.height:
        gpu, moment = back.row(0)
        raise RecordError(
            f"{paths.gpu_samples(node)}: the time of GPU {gpu} runs backwards at {moment}; the "
            "node's clock was set during the run, so that nothing can be integrated: run it again"
        )


def _idle_power(
    samples: pl.DataFrame,
    start: TelemetryStart,
    sensors: Sequence[int],
    training_started_unix_s: float,
    idle_baseline_s: float,
) -> tuple[float | None, str]:
    """Mean power by the trapezoid rule, over the idle baseline that the first sample begins."""
    first = samples.filter(pl.col("power_w").is_not_null())
    begins = dict(first.group_by("gpu").agg(pl.col("unix_time_s").first()).iter_rows())
    lacking = [gpu for gpu in sensors if gpu not in begins]
    if lacking or not sensors:
        reason = start.missing.get("power_w", "no sample has a power_w")
        return None, f"{start.node} GPU {lacking[0]}: {reason}" if lacking else reason
    begin_unix_s = max(begins[gpu] for gpu in sensors)
    end_unix_s = min(begin_unix_s + idle_baseline_s, training_started_unix_s)
    window = Window(begin_unix_s, end_unix_s)
    if window.duration_s < _SHORTEST_IDLE_S:
        return None, (
            f"node {start.node} was watched for {max(window.duration_s, 0):.3g} s before training "
            f"began, less than the {_SHORTEST_IDLE_S:g} s that power is averaged over"
        )
    looks = _look(samples, {"power_w": pl.col("power_w")}, window)["power_w"]
    if any(looks[gpu]["last_unix_s"] < end_unix_s for gpu in sensors):
        return None, f"telemetry of node {start.node} ended before training began"
    return sum(looks[gpu]["integral"] for gpu in sensors) / window.duration_s, ""
