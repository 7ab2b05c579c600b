"""A node over the measured steps: its GPUs, its CPUs, itself; and its power before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from workflow_lib.analysis import metrics, throttling
from workflow_lib.analysis.counters import counted_energies, spans_of
from workflow_lib.analysis.gpus import (
    ERROR_COUNTERS,
    LINK_COUNTERS,
    POWER,
    READINGS,
    SLOW_READINGS,
    Gpu,
    empty_row,
)
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.recordings import Recording
from workflow_lib.records import Hardware

#: shorter windows have no trustworthy power: boards report averages over about a second
_SHORTEST_IDLE_S = 1.0
#: a node's own power and RAPL come from slow buses, but change with nothing but the load
_BRIDGED_HOST_S = 30.0

#: a figure, or null and the reason why
Known = tuple[float | None, str]


@dataclass(frozen=True)
class Node:
    """The GPUs of a node that ranks used, and the node around them."""

    #: as :data:`~workflow_lib.records.GPUS` has them, less ``cell`` and ``run``
    rows: tuple[dict[str, Any], ...]
    #: each GPU → the one that reports the power of its package
    power_sensors: Mapping[int, int]
    #: of its power-reporting GPUs together
    idle_power_w: Known
    cpu_energy_j: Known
    node_energy_j: Known
    #: CPU time of its sampler, as a share of one core
    sampler_cpu_share: Known
    #: energy by counter and by trapezoid over one span, of each power-reporting GPU that has both
    compared_j: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    #: of the same GPUs, for each phase of the steps; where a row lacks energy_j it means nothing
    phase_energy_j: Mapping[str, float] = field(default_factory=dict)


def unwatched_node(node: str, gpus: Sequence[int], hardware: Hardware, reason: str) -> Node:
    """A node of which nothing is known, for one reason."""
    nothing = (None, reason)
    rows = tuple(empty_row(node, gpu, hardware, reason) for gpu in gpus)
    size = hardware.gpus_per_package
    reporting = {gpu: gpu - gpu % size for gpu in gpus}
    return Node(rows, reporting, nothing, nothing, nothing, nothing)


def reduce_node(
    recording: Recording,
    gpus: Sequence[int],
    hardware: Hardware,
    window: Window,
    before_training: Window,
    idle_baseline_s: float,
    phases: Mapping[str, Sequence[Window]],
) -> Node:
    """Reduce a node's telemetry to what its ``gpus`` did within the measured ``window``.

    ``before_training`` is from the end of the cool-down, −∞ where there was none, to the start of
    the run's first rank: in it GPUs idled, and for ``idle_baseline_s`` from its start or the first
    sample on, whichever is later, the node's CPUs did, too. ``phases`` are parts of the measured
    steps whose energy is wanted by itself.
    Raises RecordError where the driver's power samples are damaged.
    """
    looks = {
        **_looks(recording.samples, READINGS, window),
        **_looks(recording.power, POWER, window),
        **_looks(recording.counters, SLOW_READINGS, window),
    }
    spans = {
        counter: spans_of(recording.counters, counter, window)
        for counter in (*throttling.COUNTERS, *LINK_COUNTERS, *ERROR_COUNTERS)
    }
    counted = counted_energies(recording, gpus, window)
    rows = tuple(
        Gpu(
            gpu,
            recording,
            window,
            {quantity: found[gpu] for quantity, found in looks.items() if gpu in found},
            {counter: found.get(gpu) for counter, found in spans.items()},
            counted[gpu],
        ).row(hardware)
        for gpu in gpus
    )
    reporting = {gpu: recording.start.power_sensor(gpu, hardware.gpus_per_package) for gpu in gpus}
    sensors = [gpu for gpu, sensor in reporting.items() if sensor == gpu]
    compared = {gpu: counted[gpu].compared for gpu in sensors}
    return Node(
        rows,
        reporting,
        _idle_power(recording, sensors, before_training, idle_baseline_s),
        _over_host(recording, "cpu_energy_j", "increase", window),
        _over_host(recording, "node_power_w", "integral", window),
        _sampler_cpu_share(recording),
        {gpu: energies for gpu, energies in compared.items() if energies is not None},
        {phase: _energy_j(recording, sensors, windows) for phase, windows in phases.items()},
    )


def mean_over_spans(
    recording: Recording, gpus: Sequence[int], quantity: str, windows: Sequence[Window]
) -> pl.DataFrame:
    """The time-weighted mean of a quantity in each of several windows: a row a window and GPU.

    Columns ``place`` (the window's), ``gpu`` and ``mean``, null where readings do not reach.
    """
    return _integrals(recording, gpus, quantity, windows).select(
        "place", "gpu", mean=pl.col("integral") / pl.col("duration_s")
    )


def _integrals(
    recording: Recording, gpus: Sequence[int], quantity: str, windows: Sequence[Window]
) -> pl.DataFrame:
    """The integral of a quantity over each window, a row a window and GPU; null where unknown."""
    spans = pl.DataFrame(
        {
            "place": range(len(windows)),
            "start_unix_s": [window.start_unix_s for window in windows],
            "end_unix_s": [window.end_unix_s for window in windows],
        },
        schema={"place": pl.Int64, "start_unix_s": pl.Float64, "end_unix_s": pl.Float64},
    ).join(pl.DataFrame({"gpu": list(gpus)}, schema={"gpu": pl.Int64}), how="cross")
    until = {
        edge: metrics.integrals_until(
            recording.power if quantity == "power_w" else recording.samples,
            pl.col(quantity),
            spans.select("gpu", moment_unix_s=pl.col(f"{edge}_unix_s")),
        )["integral"]
        for edge in ("start", "end")
    }
    return spans.select(
        "place",
        "gpu",
        integral=until["end"] - until["start"],
        duration_s=pl.col("end_unix_s") - pl.col("start_unix_s"),
    )


def _energy_j(recording: Recording, sensors: Sequence[int], windows: Sequence[Window]) -> float:
    """The energy of power-reporting GPUs over several windows together, by the trapezoid rule."""
    return float(_integrals(recording, sensors, "power_w", windows)["integral"].sum())


def _looks(
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


def _over_host(recording: Recording, column: str, figure: str, window: Window) -> Known:
    """A figure of a node's own quantity over the window, or None and why."""
    host = recording.host.with_columns(gpu=pl.lit(0, pl.Int64))
    look = _looks(host, {column: pl.col(column)}, window)[column].get(0)
    if look is None:
        return None, f"{recording.node}: {recording.why_absent(column)}"
    first_unix_s, last_unix_s = look["first_unix_s"], look["last_unix_s"]
    if first_unix_s > window.start_unix_s or last_unix_s < window.end_unix_s:
        return None, f"{recording.node}: {column} was not read throughout the measured steps"
    if look["longest_gap_s"] > _BRIDGED_HOST_S:
        return None, (
            f"{recording.node}: {column} was not read for {look['longest_gap_s']:.3g} s, more than "
            f"the {_BRIDGED_HOST_S:g} s that are interpolated"
        )
    if figure == "increase" and look["falls"]:
        return None, f"{recording.node}: the counter {column} ran backwards"
    return look[figure], ""


def _sampler_cpu_share(recording: Recording) -> Known:
    end = recording.end
    if end is None:
        return None, f"telemetry/{recording.node}-end.json is missing: its sampler was killed"
    elapsed_s = end.ended_unix_s - recording.start.started_unix_s
    if elapsed_s <= 0:
        return None, f"the sampler of node {recording.node} ended before it began"
    return end.cpu_time_s / elapsed_s, ""


def _idle_power(
    recording: Recording,
    sensors: Sequence[int],
    before_training: Window,
    idle_baseline_s: float,
) -> Known:
    """Mean power by the trapezoid rule, over the idle baseline."""
    power, node = recording.power, recording.node
    begins = dict(power.group_by("gpu").agg(pl.col("unix_time_s").first()).iter_rows())
    lacking = [gpu for gpu in sensors if gpu not in begins]
    if lacking or not sensors:
        reason = recording.why_absent("power_w")
        return None, f"{node} GPU {lacking[0]}: {reason}" if lacking else reason
    begin_unix_s = max(before_training.start_unix_s, *(begins[gpu] for gpu in sensors))
    end_unix_s = min(begin_unix_s + idle_baseline_s, before_training.end_unix_s)
    window = Window(begin_unix_s, end_unix_s)
    if window.duration_s < _SHORTEST_IDLE_S:
        return None, (
            f"node {node} was watched for {max(window.duration_s, 0):.3g} s before training "
            f"began, less than the {_SHORTEST_IDLE_S:g} s that power is averaged over"
        )
    looks = _looks(power, POWER, window)["power_w"]
    if any(looks[gpu]["last_unix_s"] < end_unix_s for gpu in sensors):
        return None, f"telemetry of node {node} ended before training began"
    return sum(looks[gpu]["integral"] for gpu in sensors) / window.duration_s, ""
