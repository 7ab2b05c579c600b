"""Reads a run's telemetry: tables of the readings of all its nodes, or why there are none.

The files of all nodes are read into one table of each kind, because each further table costs polars
more time than its rows. In these tables each GPU has a number in the run, its ``sensor``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from workflow_lib import gpu_models
from workflow_lib.analysis import metrics
from workflow_lib.analysis.integrals import Integrals, Numbers, best_power
from workflow_lib.analysis.known import Known
from workflow_lib.analysis.samples import read_files
from workflow_lib.analysis.steps import corrected, read_clocks
from workflow_lib.records import measures
from workflow_lib.records.columns import Column, sampled
from workflow_lib.records.files import read_if_there, read_record
from workflow_lib.records.nodes import NodeClock, TelemetryEnd, TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.reasons import Reason
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
)
from workflow_lib.table_files import schema


def _columns(file: measures.File) -> tuple[str, ...]:
    """The columns of a sampler's file that measures are read from."""
    names = (measure.reading.column for measure in measures.read_from(file) if measure.reading)
    return tuple(dict.fromkeys(names))


def _means(columns: Sequence[Column]) -> Collection[str]:
    """Those whose readings are means since the reading before."""
    return {name for name, column in sampled(columns).items() if column.kind == "mean_since_last"}


#: power of at least this share of the limit counts as at the limit: on an H200 at its cap, the
#: driver's samples scatter by 2 %
AT_LIMIT_SHARE = 0.95
_FAST, _SLOW = _columns("gpu"), _columns("counters")
#: the columns of the fast readings that analysis needs; hours of many nodes are in memory at once
_SAMPLES = ("sensor", "unix_time_s", "power_w", "event_reasons", *_FAST)
_TIMED = ("unix_time_s", "gpu")
#: drivers tell limits in mW; a smaller difference is rounding
_SAME_LIMIT_W = 0.5
#: the clock while the power cap holds it down, else 0
CAPPED_CLOCK = {"capped_clock": pl.col("sm_clock_mhz") * metrics.EVENTS["power_capped"]}


@dataclass(frozen=True)
class Recording:
    """What a node's sampler recorded besides readings."""

    node: str
    start: TelemetryStart
    end: TelemetryEnd | None
    #: GPUs of the node that ranks used, in order
    gpus: tuple[int, ...]
    #: GPUs that were sampled as well, but that no rank used
    unused: tuple[int, ...]
    #: GPU → Xid events of the driver; null where they were not recorded
    xid_events: Mapping[int, int] | None
    #: column → why none of its values was recorded
    absent: Mapping[str, Reason]

    def why_absent(self, column: str) -> Reason:
        """Why no row has a value of a column."""
        return self.absent.get(column, Reason("never_read", column=column))


@dataclass(frozen=True)
class Recordings:
    """A run's telemetry. A table whose file is missing has no rows of that node, and the node's
    ``absent`` says so."""

    #: node → recording, in the order of names, for nodes that have one
    nodes: Mapping[str, Recording]
    #: node → why it has no recording
    unwatched: Mapping[str, Reason]
    #: how many sensor numbers each node has
    stride: int
    samples: pl.DataFrame
    #: ``sensor``, ``unix_time_s`` and ``power_w`` from the best source of each GPU; and
    #: ``at_power_limit``, null where the source averages over too long to tell, or no limit is
    #: known
    power: pl.DataFrame
    #: sensor → "driver" (its own samples) or "readings", for every GPU whose power was read
    power_sources: Mapping[int, str]
    #: sensor → how many readings and samples of power were left out, because no such GPU draws so
    #: much; sensors without any are left out
    refused: Mapping[int, int]
    counters: pl.DataFrame
    #: readings of nodes; ``sensor`` is the number of the node's GPU 0
    host: pl.DataFrame

    def sensor(self, node: str, gpu: int) -> int:
        """A GPU's number in the tables."""
        return self._places[node] * self.stride + gpu

    def place(self, sensor: int) -> tuple[str, int]:
        """The node and the GPU that a number stands for."""
        return list(self.nodes)[sensor // self.stride], sensor % self.stride

    def sensors(self, gpus_per_package: int | None = None) -> list[int]:
        """The numbers of all GPUs that ranks used, in order. If ``gpus_per_package`` is given, only
        of those that report the power of their package."""
        return [
            self.sensor(node, gpu)
            for node, recording in self.nodes.items()
            for gpu in recording.gpus
            if gpus_per_package is None
            or recording.start.power_sensor(gpu, gpus_per_package) == gpu
        ]

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {node: place for place, node in enumerate(self.nodes)}

    @cached_property
    def over_time(self) -> Integrals:
        """The readings of every tick, and ``sample``, which is 1 wherever there is a row."""
        plain = {name: pl.col(name) for name in _FAST}
        quantities = {"sample": pl.lit(1.0), **plain, **metrics.EVENTS, **CAPPED_CLOCK}
        return Integrals(self.samples, quantities, _means(GPU_SAMPLES))

    @cached_property
    def power_over_time(self) -> Integrals:
        """:attr:`power`, as ``power_w`` and ``at_power_limit``, 0 or 1."""
        return Integrals(self.power, {name: pl.col(name) for name in ("power_w", "at_power_limit")})

    @cached_property
    def slow_over_time(self) -> Integrals:
        """The slow readings of GPUs, which have a period of their own."""
        quantities = {name: pl.col(name) for name in _SLOW}
        return Integrals(self.counters, quantities, _means(GPU_COUNTERS))

    def of(self, quantity: str) -> Integrals:
        """The integrals that hold ``quantity``, which is ``power_w`` or another reading of every
        tick."""
        return self.power_over_time if quantity == "power_w" else self.over_time


def read_recordings(paths: RunPaths, used: Mapping[str, Sequence[int]]) -> Recordings:
    """Read the telemetry of nodes; ``used`` maps each to its GPUs that ranks used.

    Raises RecordError if a file is damaged.
    """
    unwatched: dict[str, Reason] = {}
    for node in sorted(used):
        for path in (paths.telemetry_start(node), paths.gpu_samples(node)):
            if not path.is_file():
                unwatched.setdefault(node, Reason("file_missing", file=f"telemetry/{path.name}"))
    nodes = [node for node in sorted(used) if node not in unwatched]
    starts = {node: read_record(paths.telemetry_start(node), TelemetryStart) for node in nodes}
    absent = {
        node: {column: Reason("not_read", why=why) for column, why in start.missing.items()}
        for node, start in starts.items()
    }
    clocks = read_clocks(paths, nodes)
    seen = [range(len(start.gpus)) for start in starts.values()]
    stride = 1 + max((gpu for gpus in (*used.values(), *seen) for gpu in gpus), default=0)

    def read(of: Callable[[str], Path], columns: Sequence[Column]) -> pl.DataFrame:
        files = {node: of(node) for node in nodes}
        timed = [column.name for column in columns if column.name in _TIMED]
        for node, path in files.items():
            for column in columns if not path.is_file() else ():
                if column.name not in timed:
                    reason = Reason("file_missing", file=f"telemetry/{path.name}")
                    absent[node].setdefault(column.name, reason)
        return _read_tables(files, columns, timed, stride, clocks)

    most_w = {
        place * stride + gpu: gpu_models.most_power_w(entry)
        for place, node in enumerate(nodes)
        for gpu, entry in enumerate(starts[node].gpus)
    }
    refused: Counter[int] = Counter()
    samples = read(paths.gpu_samples, GPU_SAMPLES).select(_SAMPLES)
    samples = _possible(samples, "power_w", most_w, refused)
    names = [column.name for column in POWER_SAMPLES]
    files = {node: paths.power_samples(node) for node in nodes}
    driver = _read_tables(files, POWER_SAMPLES, names, stride, clocks)
    most_mw = {sensor: 1000 * most for sensor, most in most_w.items()}
    driver = _possible(driver, "power_mw", most_mw, refused).drop_nulls("power_mw")
    power, sources = best_power(samples, driver)
    ends = {node: read_if_there(paths.telemetry_end(node), TelemetryEnd) for node in nodes}
    limits = {
        place * stride + gpu: limit
        for place, node in enumerate(nodes)
        for gpu in used[node]
        if (limit := power_limit_w(starts[node], ends[node], gpu)[0]) is not None
        and sources.get(place * stride + gpu) == "driver"
    }
    at_limit = pl.col("power_w") >= AT_LIMIT_SHARE * pl.col("sensor").replace_strict(
        limits, default=None, return_dtype=pl.Float64
    )
    power = power.with_columns(at_power_limit=at_limit)
    counters = read(paths.gpu_counters, GPU_COUNTERS)
    counters = _possible(counters, "power_instant_w", most_w, refused)
    host = read(paths.host_samples, HOST_SAMPLES)
    xid_events = _xid_events({node: paths.gpu_events(node) for node in nodes}, absent)
    recordings = {
        node: Recording(
            node,
            starts[node],
            ends[node],
            tuple(used[node]),
            tuple(gpu for gpu in range(len(starts[node].gpus)) if gpu not in used[node]),
            xid_events.get(node),
            absent[node],
        )
        for node in nodes
    }
    return Recordings(
        recordings, unwatched, stride, samples, power, sources, refused, counters, host
    )


def _possible(
    rows: pl.DataFrame, column: str, most: Mapping[int, float], refused: Counter[int]
) -> pl.DataFrame:
    """The rows with null in place of values above ``most``, by sensor. Such a value is a fault of
    the driver. ``refused`` counts them."""
    if not rows.height:
        return rows
    bound = pl.col("sensor").replace_strict(most, default=None, return_dtype=pl.Float64)
    wrong = rows.select(sensor="sensor", wrong=(pl.col(column) > bound).fill_null(value=False))
    if not wrong["wrong"].any():
        return rows
    refused.update(wrong.filter("wrong")["sensor"].to_list())
    return rows.with_columns(
        pl.when(wrong["wrong"]).then(None).otherwise(pl.col(column)).alias(column)
    )


def power_limit_w(start: TelemetryStart, end: TelemetryEnd | None, gpu: int) -> Known:
    """The power limit in W that was enforced on a GPU when its sampler began and when it ended; or
    None, and why."""
    limit = start.gpus[gpu].get("power_limit_w") if gpu < len(start.gpus) else None
    if limit is None:
        return None, Reason("driver_does_not_tell", what="the power limit")
    last = dict(enumerate((end and end.power_limits_w) or ())).get(gpu)
    if last is not None and abs(last - limit) > _SAME_LIMIT_W:
        return None, Reason("limit_changed", limit=limit, last=last)
    return float(limit), ""


def _read_tables(
    files: Mapping[str, Path],
    columns: Sequence[Column],
    required: Sequence[str],
    stride: int,
    clocks: Mapping[str, NodeClock],
) -> pl.DataFrame:
    """The files of all nodes that have one, as one table sorted by ``sensor`` and ``unix_time_s``.
    ``sensor`` replaces ``gpu``, and times are of rank 0's clock. GPUs with numbers from ``stride``
    on are left out. Raises RecordError if the time of a sensor runs backwards."""
    there = {place: path for place, path in enumerate(files.values()) if path.is_file()}
    if not there:
        nothing = pl.DataFrame(schema=schema(columns))
        return nothing.with_columns(sensor=pl.lit(0, pl.Int64), unix_time_s=pl.lit(0.0))
    rows = read_files(list(there.values()), columns, required)
    if "driver_time_us" in rows.columns:
        rows = rows.with_columns(unix_time_s=pl.col("driver_time_us") / 1e6).drop("driver_time_us")
    places = np.array(list(there))[rows["file"].to_numpy()]
    times = rows["unix_time_s"].to_numpy()
    for place, node in enumerate(files):
        if clock := clocks.get(node):
            times = np.where(places == place, corrected(times, clock), times)
    if clocks:
        rows = rows.with_columns(unix_time_s=pl.Series(times))
    sensors = places * stride
    gpus = rows["gpu"].to_numpy() if "gpu" in rows.columns else np.zeros_like(sensors)
    sensors += gpus
    rows = rows.drop("file", "gpu", strict=False).with_columns(sensor=pl.Series(sensors))
    order = _order(sensors, (gpus >= 0) & (gpus < stride))
    rows, sensors = rows[order], sensors[order]
    times = rows["unix_time_s"].to_numpy()
    back = np.flatnonzero((np.diff(times) < 0) & (np.diff(sensors) == 0))
    if back.size:
        place, gpu = divmod(int(sensors[back[0] + 1]), stride)
        has_gpus = any(column.name == "gpu" for column in columns)
        whose = f"the time of GPU {gpu}" if has_gpus else "the time"
        raise RecordError(
            f"{there[place]}: {whose} runs backwards at {times[back[0] + 1]}; the node's clock was "
            "set during the run, so that nothing can be integrated: run it again"
        )
    return rows


def _order(sensors: Numbers, wanted: npt.NDArray[np.bool_]) -> Numbers:
    """The indices of the wanted rows, sorted by sensor; rows of one sensor keep their order."""
    rows = None if wanted.all() else np.flatnonzero(wanted)
    numbers = sensors if rows is None else sensors[rows]
    # A stable sort of 16-bit numbers takes a fifth of the time.
    small = np.iinfo(np.int16).max
    if numbers.size and -small < numbers.min() and numbers.max() < small:
        numbers = numbers.astype(np.int16)
    order = np.argsort(numbers, kind="stable")
    return order if rows is None else rows[order]


def _xid_events(
    files: Mapping[str, Path], absent: Mapping[str, dict[str, Reason]]
) -> dict[str, Counter[int]]:
    """Node → GPU → number of Xid events, for each node that has the file."""
    there = {node: path for node, path in files.items() if path.is_file()}
    for node in files.keys() - there.keys():
        absent[node].setdefault(
            "event", Reason("file_missing", file=f"telemetry/{files[node].name}")
        )
    counts: dict[str, Counter[int]] = {node: Counter() for node in there}
    if there:
        events = read_files(list(there.values()), GPU_EVENTS, (*_TIMED, "event"))
        nodes = list(there)
        for place, gpu in events.filter(pl.col("event") == "xid").select("file", "gpu").iter_rows():
            counts[nodes[place]][gpu] += 1
    return counts
