"""The measures of a node, its GPUs and its CPUs over the measured steps, and its idle power."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workflow_lib.analysis import metrics
from workflow_lib.analysis.counters import (
    THROTTLE_COUNTERS,
    Counted,
    CountedThrottling,
    bursts_at_limit,
    counted_throttling,
    spans_of,
)
from workflow_lib.analysis.gpus import ERROR_COUNTERS, Gpu, empty_row
from workflow_lib.analysis.integrals import Floats
from workflow_lib.analysis.known import Known, Values, known, missing_of, over, scaled
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.recordings import Recording, Recordings
from workflow_lib.records import measures
from workflow_lib.records.cell import Hardware
from workflow_lib.records.columns import Kind, sampled
from workflow_lib.records.measures import Reading
from workflow_lib.records.reasons import Reason, missing
from workflow_lib.records.tables import UNUSED_GPUS
from workflow_lib.records.telemetry_columns import HOST_SAMPLES
from workflow_lib.telemetry.validity.counter_span import CounterSpan

_NAMES = tuple(column.name for column in UNUSED_GPUS if column.name not in ("cell", "run"))


def unused_row(gpu: Gpu, hardware: Hardware) -> dict[str, Any]:
    """The row of UNUSED_GPUS, less ``cell`` and ``run``, of a GPU that the job had."""
    whole = gpu.row(hardware)
    row = {name: whole.get(name) for name in _NAMES}
    reasons = Reason.of_row(whole)
    row["watched"] = True
    row["gpu_name"] = gpu.recording.start.gpus[gpu.gpu].get("name")
    if row["gpu_name"] is None:
        reasons["gpu_name"] = Reason("driver_does_not_tell", what="the GPU's name")
    lacking = {column: reason for column, reason in reasons.items() if column in row}
    return row | missing(lacking)


#: of a GPU that the job did not have: column, key of the sampler's entry, and what it is
_TOLD = (
    ("gpu_name", "name", "the GPU's name"),
    ("gpu_uuid", "uuid", "the GPU's UUID"),
    ("power_mean_w", "power_w", "its power"),
    ("power_limit_w", "power_limit_w", "the power limit"),
)


def rows_of_others(recording: Recording) -> Iterator[dict[str, Any]]:
    """Rows of UNUSED_GPUS of GPUs that the job did not have, as the sampler found them when it
    began."""
    for other in recording.start.other_gpus:
        unwatched = Reason("not_of_the_job")
        values: Values = {
            name: known(other.get(key), Reason("driver_does_not_tell", what=what))
            for name, key, what in _TOLD
        } | {
            "gpu_utilisation_share": (None, unwatched),
            "gpu_memory_used_peak_bytes": (None, unwatched),
        }
        row = {name: value for name, (value, _) in values.items()} | {
            "node": recording.node,
            "gpu": other["index"],
            "watched": False,
            "simulated": recording.start.simulated,
            **missing_of(values),
        }
        yield {name: row[name] for name in _NAMES}


#: shorter windows have no trustworthy power: boards report averages over about a second
_SHORTEST_IDLE_S = 1.0
_HOST = sampled(HOST_SAMPLES)
#: means since the row before that are integrated as if they were points. Rows are a second apart,
#: so the mean over a window is off by half a second's change at each end.
_TAKEN_AS_POINTS = ("cpu_utilisation_percent",)
#: CPU time of the sampler itself, a column of the node's readings
_OWN_CPU_TIME = "sampler_cpu_time_s"
_NONE_INSIDE = Reason("no_reading_inside")
#: counters of GPUs whose increase is a measure
_COUNTED = tuple(
    measure.reading.column
    for measure in measures.read_from("counters")
    if measure.reading and measure.reading.statistic == "increase"
)
#: for a GPU that no rank used
_NOT_COUNTED = Counted(None, Reason("counter_not_asked"))


@dataclass(frozen=True)
class Node:
    """The rows of a node, of its GPUs that ranks used, and of its other GPUs."""

    #: rows of :data:`~workflow_lib.records.tables.GPUS`, less ``cell`` and ``run``
    gpus: tuple[dict[str, Any], ...]
    #: a row of :data:`~workflow_lib.records.tables.NODES`, less the same
    row: dict[str, Any]
    #: each GPU → the one that reports the power of its package
    power_sensors: Mapping[int, int]
    #: phase of the steps → energy in J of the power-reporting GPUs; not valid where one of their
    #: rows lacks energy_j
    phase_energy_j: Mapping[str, float] = field(default_factory=dict)
    #: rows of :data:`~workflow_lib.records.tables.UNUSED_GPUS`, less ``cell`` and ``run``
    unused: tuple[dict[str, Any], ...] = ()


def _node_row(node: str, values: Values) -> dict[str, Any]:
    plain = {name: value for name, (value, _) in values.items()}
    return {"node": node, **plain, **missing_of(values)}


def unwatched_node(node: str, gpus: Sequence[int], hardware: Hardware, reason: Reason) -> Node:
    """A node without telemetry: all measures of the node and its GPUs are null for ``reason``."""
    nothing: Values = {measure.name: (None, reason) for measure in measures.at_level("node")}
    rows = tuple(empty_row(node, gpu, hardware, reason) for gpu in gpus)
    size = hardware.gpus_per_package
    return Node(rows, _node_row(node, nothing), {gpu: gpu - gpu % size for gpu in gpus})


def reduce_nodes(
    recordings: Recordings,
    hardware: Hardware,
    window: Window,
    before_training: Window,
    idle_baseline_s: float,
    phases: Mapping[str, Sequence[Window]],
    of_ranks: Mapping[tuple[str, int], Values],
    counted: Mapping[int, Counted],
) -> list[Node]:
    """Reduce telemetry to what each node's GPUs did within the measured ``window``.

    ``before_training`` lasts from the end of the cool-down (−∞ if there was none) to the start of
    the run's first rank. GPUs idle throughout it. The node's CPUs idle only in its first
    ``idle_baseline_s`` seconds, counted from its start or the first sample, whichever is later.
    ``phases`` are parts of the measured steps whose energy is reported separately. ``of_ranks``
    holds what its rank counted of each GPU, by node and number, and ``counted`` what
    :func:`~workflow_lib.analysis.counters.counted_shares` found.
    """
    looks = {
        **recordings.over_time.looks(window),
        **recordings.power_over_time.looks(window),
        **recordings.slow_over_time.looks(window),
    }
    counters = dict.fromkeys((*THROTTLE_COUNTERS, *ERROR_COUNTERS, *_COUNTED))
    spans = spans_of(recordings.counters, tuple(counters), window)
    throttled = _throttled(recordings, spans)
    bursts = bursts_at_limit(recordings.power, window)
    host = _looks_at_hosts(recordings, window)
    phase_j = {
        phase: _energies_j(recordings, hardware, windows, counted)
        for phase, windows in phases.items()
    }
    idle = _idle_powers(recordings, hardware, before_training, idle_baseline_s)
    nodes = []
    for name, recording in recordings.nodes.items():

        def of_gpu(gpu: int, recording: Recording = recording) -> Gpu:
            number = recordings.sensor(recording.node, gpu)
            return Gpu(
                gpu,
                recording,
                window,
                {
                    quantity: sensors[number]
                    for quantity, sensors in looks.items()
                    if number in sensors
                },
                {counter: sensors.get(number) for counter, sensors in spans.items()},
                counted.get(number, _NOT_COUNTED),
                recordings.power_sources.get(number),
                recordings.refused.get(number, 0),
                throttled.get(number),
                bursts.get(number, 0),
                of_ranks.get((recording.node, gpu), {}),
            )

        reporting = {
            gpu: recording.start.power_sensor(gpu, hardware.gpus_per_package)
            for gpu in recording.gpus
        }
        itself = recordings.sensor(name, 0)
        of_host = {column: sensors.get(itself) for column, sensors in host.items()}
        values = _of_host(recording, of_host, window)
        values["node_energy_j"] = scaled(values["node_power_mean_w"], window.duration_s)
        values["idle_power_w"] = idle[name]
        values["sampler_cpu_share"] = _sampler_cpu_share(recording, of_host[_OWN_CPU_TIME], window)
        nodes.append(
            Node(
                tuple(of_gpu(gpu).row(hardware) for gpu in recording.gpus),
                _node_row(name, values),
                reporting,
                {phase: energy_j.get(name, 0.0) for phase, energy_j in phase_j.items()},
                (
                    *(unused_row(of_gpu(gpu), hardware) for gpu in recording.unused),
                    *rows_of_others(recording),
                ),
            )
        )
    return nodes


def _throttled(
    recordings: Recordings, spans: Mapping[str, Mapping[int, CounterSpan]]
) -> dict[int, CountedThrottling]:
    """Sensor → shares of throttling by counters. Empty if a GPU of the run has none, because
    sampled and counted shares cannot be combined."""
    shares = {}
    for sensor in recordings.sensors():
        counted = counted_throttling({name: spans[name].get(sensor) for name in THROTTLE_COUNTERS})
        if counted is None:
            return {}
        shares[sensor] = counted
    return shares


def mean_over_spans(
    recordings: Recordings, sensors: Sequence[int], quantity: str, windows: Sequence[Window]
) -> Floats:
    """The time-weighted mean of a quantity in each of several windows.

    The result has the shape (sensors, windows), and is NaN where readings do not reach.
    """
    means = _integrals(recordings, sensors, quantity, windows)
    means /= [window.duration_s for window in windows]
    return means


def _integrals(
    recordings: Recordings, sensors: Sequence[int], quantity: str, windows: Sequence[Window]
) -> Floats:
    """The integral of a quantity over each window, of the shape (sensors, windows), or NaN."""
    return recordings.of(quantity).over(
        quantity,
        np.array(sensors, dtype=np.int64)[:, None],
        np.array([window.start_unix_s for window in windows]),
        np.array([window.end_unix_s for window in windows]),
    )


def _energies_j(
    recordings: Recordings,
    hardware: Hardware,
    windows: Sequence[Window],
    counted: Mapping[int, Counted],
) -> dict[str, float]:
    """Node → the energy of its power-reporting GPUs over several windows together, in J."""
    sensors = recordings.sensors(hardware.gpus_per_package)
    of_sensors = _integrals(recordings, sensors, "power_w", windows)
    of_nodes: dict[str, float] = {}
    for sensor, energies in zip(sensors, of_sensors.tolist(), strict=True):
        node, _ = recordings.place(sensor)
        of_nodes[node] = of_nodes.get(node, 0.0) + sum(energies) * (counted[sensor].share or 1.0)
    return of_nodes


def _looks_at_hosts(recordings: Recordings, window: Window) -> dict[str, dict[int, dict[str, Any]]]:
    """:func:`metrics.over_window` of each node's own quantities, as column → sensor → row."""
    host = recordings.host.rename({"sensor": "gpu"})
    columns = {measure.reading.column for measure in measures.read_from("host") if measure.reading}
    columns.add(_OWN_CPU_TIME)
    looks = {}
    for column in sorted(columns):
        kind: Kind = "point" if column in _TAKEN_AS_POINTS else _HOST[column].kind
        looks[column] = metrics.over_window(host, column, window, kind)
    return looks


def _of_host(
    recording: Recording, looks: Mapping[str, Mapping[str, Any] | None], window: Window
) -> Values:
    """The measures of a node's own sensors and counters over the window."""
    values: Values = {}
    for measure in measures.read_from("host"):
        reading = measure.reading
        assert reading is not None  # read_from() returns only measures with a reading
        look = looks[reading.column]
        if problem := _host_problem(recording, reading, look, window):
            values[measure.name] = None, problem.of(recording.node)
        elif look is not None:
            is_mean = reading.statistic == "mean"
            value = look["integral" if is_mean else reading.statistic]
            reason = _NONE_INSIDE.of(f"{recording.node}: {reading.column}")
            whole = over(known(value, reason), window.duration_s if is_mean else 1.0)
            values[measure.name] = scaled(whole, reading.factor)
    return values


def _host_problem(
    recording: Recording, reading: Reading, look: Mapping[str, Any] | None, window: Window
) -> Reason | None:
    """Why a node's own quantity has no statistic over the window; None where it has."""
    column = reading.column
    if look is None:
        return recording.why_absent(column)
    first_unix_s, last_unix_s = look["first_unix_s"], look["last_unix_s"]
    if first_unix_s > window.start_unix_s or last_unix_s < window.end_unix_s:
        return Reason("not_read_throughout", column=column)
    bridged_s = _HOST[column].bridged_s(recording.start.sample_rate_hz)
    if look["longest_gap_s"] > bridged_s:
        return Reason(
            "reading_gap", column=column, gap_s=look["longest_gap_s"], bridged_s=bridged_s
        )
    if reading.statistic == "increase" and look["falls"]:
        return Reason("counter_fell", counter=column)
    return None


def _sampler_cpu_share(
    recording: Recording, look: Mapping[str, Any] | None, window: Window
) -> Known:
    """The sampler's share of one CPU over the measured steps. Its start-up, which takes a second,
    lies before training."""
    if look is None:
        return None, recording.why_absent(_OWN_CPU_TIME).of(recording.node)
    reading = Reading("host", _OWN_CPU_TIME, "increase")
    if problem := _host_problem(recording, reading, look, window):
        return None, problem.of(recording.node)
    return look["increase"] / window.duration_s, ""


def _idle_powers(
    recordings: Recordings, hardware: Hardware, before_training: Window, idle_baseline_s: float
) -> dict[str, Known]:
    """Node → the mean power of its GPUs over the idle baseline in W, by the trapezoid rule, or null
    and why."""
    edges = recordings.power_over_time.edges("power_w")
    read = {sensor: span for sensor, (span, _, _) in edges.items()}
    powers: dict[str, Known] = {}
    windows: dict[str, Window] = {}
    reporting: dict[str, list[int]] = {node: [] for node in recordings.nodes}
    for sensor in recordings.sensors(hardware.gpus_per_package):
        reporting[recordings.place(sensor)[0]].append(sensor)
    for node, sensors in reporting.items():
        reason = recordings.nodes[node].why_absent("power_w")
        lacking = [recordings.place(sensor)[1] for sensor in sensors if sensor not in read]
        if lacking or not sensors:
            powers[node] = None, reason.of(f"{node} GPU {lacking[0]}") if lacking else reason
            continue
        begin_unix_s = max(
            before_training.start_unix_s, *(read[sensor].start_unix_s for sensor in sensors)
        )
        end_unix_s = min(begin_unix_s + idle_baseline_s, before_training.end_unix_s)
        window = Window(begin_unix_s, end_unix_s)
        if window.duration_s < _SHORTEST_IDLE_S:
            powers[node] = (
                None,
                Reason(
                    "idle_too_short",
                    node=node,
                    watched_s=max(window.duration_s, 0),
                    shortest_idle_s=_SHORTEST_IDLE_S,
                ),
            )
        elif any(read[sensor].end_unix_s < end_unix_s for sensor in sensors):
            powers[node] = None, Reason("idle_not_watched", node=node)
        else:
            windows[node] = window
    for node, window in windows.items():
        energies = _integrals(recordings, reporting[node], "power_w", [window])[:, 0]
        powers[node] = sum(energies.tolist()) / window.duration_s, ""
    return powers
