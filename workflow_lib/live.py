"""The present state of every run: its progress, its speed, and readings of its GPUs.

    results/ ──▶ Watcher.look ──▶ Snapshot ──▶ `triptych watch`, `triptych metrics`

Only files are read, and only the ends of long ones. A run that has ended is read again only if its
outcome changes. A reading that is older than ``FRESH_S`` is left out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from workflow_lib import results, status
from workflow_lib.analysis import metrics
from workflow_lib.records import bounds
from workflow_lib.records.cell import Cell
from workflow_lib.records.columns import Column
from workflow_lib.records.contract import STEPS
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import Field, RecordError, open_file, read_header, read_row
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_SAMPLES, HOST_SAMPLES
from workflow_lib.status import RunStatus

#: how old a reading may be: the sampler writes once a second, but a shared file system may be slow,
#: and clocks of nodes differ
FRESH_S = 60.0
#: number of last steps from which the speed is computed
SPEED_STEPS = 10
#: the states of a run whose files still change
_UNDER_WAY = ("running", "ended")
#: columns with the time of a row and its GPU
_PLACE = ("unix_time_s", "gpu")
#: columns that one GPU of a package reports for the whole package
_OF_PACKAGE = ("power_w", "power_instant_w", "energy_j")


@dataclass(frozen=True)
class GpuNow:
    """A GPU's latest readings, by the columns of GPU_SAMPLES and GPU_COUNTERS, in their units.

    Readings that failed or are too old are left out, and so is the power of a package on a GPU that
    does not report it.
    """

    gpu: int
    readings: Mapping[str, float]
    #: whether this GPU reports the power of its package
    reports_power: bool

    @property
    def throttled(self) -> Mapping[str, bool] | None:
        """Reason → whether it lowers the GPU's clock; None if the driver does not say."""
        if "event_reasons" not in self.readings:
            return None
        bits = int(self.readings["event_reasons"])
        slowed = bits & metrics.HARDWARE_SLOWDOWN and not bits & metrics.HARDWARE_THERMAL
        return {
            "power_cap": bool(bits & metrics.POWER_CAP),
            "thermal": bool(bits & (metrics.SOFTWARE_THERMAL | metrics.HARDWARE_THERMAL)),
            "power_brake": bool(bits & metrics.POWER_BRAKE or slowed),
        }


@dataclass(frozen=True)
class NodeNow:
    """A node of a run under way."""

    node: str
    #: nvidia, amd or simulated
    source: str
    #: time of the last row, by the node's clock, however old; null before the first
    sampled_unix_s: float | None
    gpus: tuple[GpuNow, ...]
    #: the latest readings, by the columns of HOST_SAMPLES
    readings: Mapping[str, float]

    @property
    def gpu_power_w(self) -> float | None:
        """Power of all GPUs, in W; None unless every sensor has a reading."""
        read = [gpu.readings.get("power_w") for gpu in self.gpus if gpu.reports_power]
        known = [power for power in read if power is not None]
        return sum(known) if known and len(known) == len(read) else None

    @property
    def hottest_c(self) -> float | None:
        """Temperature of the hottest GPU, in °C; None if no GPU has a reading."""
        read = (gpu.readings.get("temperature_c") for gpu in self.gpus)
        return max((temperature for temperature in read if temperature is not None), default=None)


@dataclass(frozen=True)
class RunNow:
    """The status of a run, and more for a run that is under way."""

    status: RunStatus
    #: steps that it will do, warm-up included; null for a profiled run, and after the run's end
    steps_asked: int | None = None
    #: speed over the last steps, by rank 0's clock; null before its first step
    tokens_per_s: float | None = None
    nodes: tuple[NodeNow, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The state of all runs at one time."""

    taken_unix_s: float
    runs: tuple[RunNow, ...]
    #: files that could not be read, a sentence each
    problems: tuple[str, ...]


class Watcher:
    """Reads a results directory repeatedly, and remembers what cannot have changed."""

    def __init__(self, root: Path) -> None:
        """``root`` is the results directory. Nothing is read yet."""
        self._root = root
        self._plans: tuple[object, set[tuple[str, int]]] = (None, set())
        #: run → marks of its outcome's files, and its status
        self._ended: dict[tuple[str, int], tuple[object, RunStatus]] = {}

    def look(self, now_unix_s: float) -> Snapshot:
        """The state of all runs now. A damaged file becomes a problem of the snapshot; other runs
        are still read."""
        planned, problems = self._planned()
        read = functools.partial(self._run, now_unix_s)
        runs, unreadable = status.read_runs(self._root, planned, read)
        return Snapshot(now_unix_s, tuple(runs), (*problems, *unreadable))

    def _planned(self) -> tuple[set[tuple[str, int]], list[str]]:
        """The runs of all plans, and why some plans cannot be read."""
        plans = status.plans_of(self._root)
        marks = [(path, _mark(path)) for path in plans]
        if marks == self._plans[0]:
            return self._plans[1], []
        planned, problems = status.planned_by_any(plans)
        # One that could not be read may be readable next time.
        self._plans = (None if problems else marks, planned)
        return planned, problems

    def _run(
        self, now_unix_s: float, cell: str, run: int, directory: Path, planned: bool
    ) -> RunNow:
        paths = RunPaths(directory)
        mark = (planned, _mark(paths.outcome), _mark(paths.failure))
        known_mark, known = self._ended.get((cell, run), (None, None))
        if known is not None and mark == known_mark:
            return RunNow(known)
        run_status = status.status(cell, run, directory, planned)
        if run_status.state in ("finished", "failed", "again"):
            self._ended[cell, run] = (mark, run_status)
        if run_status.state not in _UNDER_WAY:
            return RunNow(run_status)
        asked = read_record(paths.cell, Cell)
        training = asked.training
        return RunNow(
            run_status,
            None
            if run == results.PROFILED_RUN
            else training.warmup_steps + training.measured_steps,
            tokens_per_s(paths, asked.degrees.dp),
            tuple(
                node_now(paths, node, asked.hardware.gpus_per_package, now_unix_s)
                for node in paths.sampled_nodes()
            ),
        )


def _mark(path: Path) -> object:
    """A value that changes with the file's content; None if there is no file."""
    try:
        file_stat = path.stat()
    except FileNotFoundError:
        return None
    return file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino


def tokens_per_s(paths: RunPaths, replicas: int) -> float | None:
    """Tokens per second that the run trains on, or reads and generates, over rank 0's last
    SPEED_STEPS steps; None before the first step.

    Every replica has as many tokens as rank 0's. The time is from the first step's start to the
    last one's end, with pauses between steps included. Raises RecordError and OSError.
    """
    steps = list(islice(newest_rows(paths.rank_steps(0), STEPS), SPEED_STEPS))
    tokens = [step["tokens"] for step in steps]
    if not steps or not all(isinstance(token, int) for token in tokens):
        return None
    began, ended = steps[-1]["started_unix_s"], steps[0]["ended_unix_s"]
    if not isinstance(began, float) or not isinstance(ended, float) or ended <= began:
        return None
    return sum(token for token in tokens if isinstance(token, int)) * replicas / (ended - began)


def node_now(paths: RunPaths, node: str, gpus_per_package: int, now_unix_s: float) -> NodeNow:
    """A node's latest readings. Raises RecordError and OSError."""
    start = read_record(paths.telemetry_start(node), TelemetryStart)
    after = now_unix_s - FRESH_S
    gpus = range(len(start.gpus))
    last = next(newest_rows(paths.gpu_samples(node), GPU_SAMPLES), None)
    samples = _newest_row(paths.gpu_samples(node), GPU_SAMPLES, gpus, after)
    counters = _newest_counters(paths.gpu_counters(node), gpus, start.missing, after)
    host = _newest_row(paths.host_samples(node), HOST_SAMPLES, range(1), after)
    gpus_now = []
    for gpu in gpus:
        own = start.power_sensor(gpu, gpus_per_package) == gpu
        read = counters[gpu] | samples[gpu]
        kept = {name: value for name, value in read.items() if own or name not in _OF_PACKAGE}
        gpus_now.append(GpuNow(gpu, kept, own))
    sampled = _time(last) if last else None
    return NodeNow(node, start.source, sampled, tuple(gpus_now), host[0])


def _newest_row(
    path: Path, columns: Sequence[Column], gpus: range, after_unix_s: float
) -> dict[int, dict[str, float]]:
    """GPU → readings of its last row. An empty field there means that the reading failed."""
    newest: dict[int, dict[str, float]] = {}
    for gpu, row in _fresh_rows(path, columns, after_unix_s):
        newest.setdefault(gpu, _numbers(row))
        if len(newest) >= len(gpus):
            break
    return {gpu: newest.get(gpu, {}) for gpu in gpus}


def _newest_counters(
    path: Path, gpus: range, missing: Mapping[str, str], after_unix_s: float
) -> dict[int, dict[str, float]]:
    """GPU → the last value of each column. An empty field in a row means that it was not due.

    Rows are read backwards until every column has a value, except those in ``missing``.
    """
    wanted = sum(column.name not in (*_PLACE, *missing) for column in GPU_COUNTERS)
    newest: dict[int, dict[str, float]] = {gpu: {} for gpu in gpus}
    incomplete = set(gpus)
    for gpu, row in _fresh_rows(path, GPU_COUNTERS, after_unix_s):
        if gpu in incomplete:
            newest[gpu] = _numbers(row) | newest[gpu]
            if len(newest[gpu]) >= wanted:
                incomplete.discard(gpu)
                if not incomplete:
                    break
    return newest


def _fresh_rows(
    path: Path, columns: Sequence[Column], after_unix_s: float
) -> Iterator[tuple[int, Mapping[str, Field]]]:
    """Yield GPU and row, from the last row backwards, until a row is older than ``after_unix_s``.
    Rows of a host count as GPU 0."""
    for row in newest_rows(path, columns):
        read = _time(row)
        if read is None or read < after_unix_s:
            return
        gpu = row.get("gpu", 0)
        if isinstance(gpu, int):
            yield gpu, row


def _numbers(row: Mapping[str, Field]) -> dict[str, float]:
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float) and name not in _PLACE
    }


def _time(row: Mapping[str, Field]) -> float | None:
    time = row["unix_time_s"]
    return float(time) if isinstance(time, int | float) else None


def newest_rows(path: Path, columns: Sequence[Column]) -> Iterator[dict[str, Field]]:
    """Yield rows from the last one backwards, within the file's last ``WATCHED_BYTES``.

    A row that is being written is left out. A file that does not exist, or has no complete header
    yet, has no rows. Raises RecordError if a line does not match ``columns``, and OSError.
    """
    try:
        stream = open_file(path)
    except FileNotFoundError:
        return
    with stream:
        header = stream.readline(bounds.LINE_BYTES.most + 1)
        if not header.endswith(b"\n"):
            return
        there = read_header(header, columns)
        if there is None:
            raise RecordError(f"{path}:1: not the expected column names")
        first = stream.tell()
        start = max(first, stream.seek(0, os.SEEK_END) - bounds.WATCHED_BYTES.most)
        stream.seek(start)
        lines = stream.read(bounds.WATCHED_BYTES.most).split(b"\n")
    lines.pop()  # empty, or a row that is being written
    if start > first:
        lines = lines[1:]  # the first line is incomplete
    for line in reversed(lines):
        try:
            yield read_row(line, there, columns)
        except ValueError as error:
            raise RecordError(f"{path}: {error}") from None
