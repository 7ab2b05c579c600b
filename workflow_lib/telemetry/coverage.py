"""Whether a run's telemetry covers its measured steps, on every GPU and without holes.

A run whose energy was watched only in part would look cheaper than it was, so it is no result. The
check streams through the files: it runs in a small process that waits for jobs, beside hours of
samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workflow_lib import records
from workflow_lib.records import Cell, Column, RunPaths

#: no two power samples may lie further apart than this, or than so many periods
_LONGEST_GAP_S = 1.0
_LONGEST_GAP_PERIODS = 5


class _InvalidError(Exception):
    """One sentence on what does not hold."""


@dataclass(frozen=True)
class _Window:
    """The measured steps of a run, and the local GPUs that ranks used, by node.

    A rank that trained on a CPU used GPU None.
    """

    start_unix_s: float
    end_unix_s: float
    gpus: dict[str, set[int | None]]


@dataclass
class _Gpu:
    """What has been seen of one GPU so far."""

    time_s: float = -math.inf
    power_time_s: float | None = None
    energy_j: float = -math.inf


def invalid_reason(paths: RunPaths, cell: Cell) -> str | None:
    """None where telemetry fully covers the measured steps; else one sentence that says why not.

    Every rank must have recorded all measured steps, and every node where ranks ran must have
    sampled the power of each of its GPUs from before the first of these steps began until after the
    last had ended, with no gap above 1 s (or 5 periods, where that is longer).
    """
    try:
        window = _measured_window(paths, cell)
        for node in sorted(window.gpus):
            _check_node(paths, cell, node, window)
    except _InvalidError as error:
        return str(error)
    except records.RecordError as error:
        return f"{error}."
    except FileNotFoundError as error:
        return f"{error.filename} is missing."
    return None


def _measured_window(paths: RunPaths, cell: Cell) -> _Window:
    start, end = math.inf, -math.inf
    gpus: dict[str, set[int | None]] = {}
    for rank in range(cell.degrees.world_size):
        record = records.read_record(paths.rank(rank), records.RankRecord)
        rank_start, rank_end = _measured_steps(paths.rank_steps(rank), cell)
        start, end = min(start, rank_start), max(end, rank_end)
        gpus.setdefault(record.node, set()).add(record.gpu)
    if len(gpus) != cell.nodes:
        raise _InvalidError(
            f"The ranks ran on {len(gpus)} nodes ({', '.join(sorted(gpus))}), not on {cell.nodes}."
        )
    return _Window(start, end, gpus)


def _measured_steps(path: Path, cell: Cell) -> tuple[float, float]:
    """Start of a rank's first measured step and end of its last."""
    expected = cell.training.warmup_steps
    before = -math.inf
    start = end = math.nan
    for line, row in _rows(path, records.STEPS):
        started, ended = row["started_unix_s"], row["ended_unix_s"]
        if not isinstance(started, float) or not isinstance(ended, float):
            raise _InvalidError(f"{path}, line {line}: the step has no start or no end.")
        if started > ended or started < before:
            raise _InvalidError(f"{path}, line {line}: the clock went backwards.")
        before = ended
        if row["phase"] != "measured":
            continue
        if row["step"] != expected:
            raise _InvalidError(f"{path}, line {line}: step {row['step']}, expected {expected}.")
        if expected == cell.training.warmup_steps:
            start = started
        end = ended
        expected += 1
    measured = expected - cell.training.warmup_steps
    if measured != cell.training.measured_steps:
        raise _InvalidError(
            f"{path} holds {measured} of {cell.training.measured_steps} measured steps."
        )
    return start, end


def _check_node(paths: RunPaths, cell: Cell, node: str, window: _Window) -> None:
    path = paths.telemetry_start(node)
    if not path.exists():
        raise _InvalidError(f"Node {node} has no telemetry ({path} is missing).")
    start = records.read_record(path, records.TelemetryStart)
    count = len(start.gpus)
    if cell.telemetry.source not in ("auto", start.source):
        raise _InvalidError(
            f"{path}: telemetry came from {start.source!r}, not from {cell.telemetry.source!r}."
        )
    if count < cell.ranks_per_node:
        raise _InvalidError(f"{path}: {count} GPUs were sampled, {cell.ranks_per_node} were used.")
    trained = window.gpus[node] - {None}
    if start.simulated and trained:
        raise _InvalidError(f"{path}: the readings are simulated, but node {node} trained on GPUs.")
    if not start.simulated and None in window.gpus[node]:
        raise _InvalidError(
            f"{path}: the readings are of real GPUs, but node {node} trained on its CPU: install a "
            "torch build that can use the GPUs, or set the platform's telemetry to simulated."
        )
    if outside := sorted(gpu for gpu in trained if gpu is not None and gpu >= count):
        raise _InvalidError(f"{path}: GPU {outside[0]} trained, but only {count} were sampled.")
    if cell.hardware.gpu is not None and not start.simulated:
        for gpu, entry in enumerate(start.gpus):
            if cell.hardware.gpu not in str(entry.get("name")):
                raise _InvalidError(
                    f"{path}: GPU {gpu} is {str(entry.get('name'))!r}, not {cell.hardware.gpu!r}."
                )
    sensors = [
        gpu
        for gpu, entry in enumerate(start.gpus)
        if entry.get("reports_power", gpu % cell.hardware.gpus_per_package == 0)
    ]
    longest_s = max(_LONGEST_GAP_S, _LONGEST_GAP_PERIODS / start.sample_rate_hz)
    _check_samples(paths.gpu_samples(node), count, sensors, window, longest_s)


def _check_samples(
    path: Path, count: int, sensors: Sequence[int], window: _Window, longest_s: float
) -> None:
    gpus = [_Gpu() for _ in range(count)]
    reporting = frozenset(sensors)
    for line, row in _rows(path, records.GPU_SAMPLES):
        time_s, number, power_w, energy_j = (
            row["unix_time_s"],
            row["gpu"],
            row["power_w"],
            row["energy_j"],
        )
        if not isinstance(time_s, float) or not isinstance(number, int):
            raise _InvalidError(f"{path}, line {line}: the sample has no time or no GPU.")
        if not 0 <= number < count:
            raise _InvalidError(f"{path}, line {line}: there is no GPU {number} on this node.")
        gpu = gpus[number]
        where = f"{path}, line {line}: GPU {number}"
        if time_s < gpu.time_s:
            raise _InvalidError(f"{where}: the clock went backwards.")
        gpu.time_s = time_s
        if isinstance(energy_j, float):
            if energy_j < gpu.energy_j:
                raise _InvalidError(f"{where}: the energy counter ran backwards.")
            gpu.energy_j = energy_j
        if number in reporting and power_w is not None:
            _check_gap(gpu.power_time_s, time_s, window, longest_s, where)
            gpu.power_time_s = time_s
    for number in sensors:
        last = gpus[number].power_time_s
        if last is None:
            raise _InvalidError(f"{path}: GPU {number} has no power sample.")
        if last < window.end_unix_s:
            raise _InvalidError(
                f"{path}: the last power sample of GPU {number} is "
                f"{window.end_unix_s - last:.1f} s before the end of the measured steps."
            )


def _check_gap(
    before_s: float | None, time_s: float, window: _Window, longest_s: float, where: str
) -> None:
    if before_s is None:
        if time_s > window.start_unix_s:
            raise _InvalidError(
                f"{where}: the first power sample is {time_s - window.start_unix_s:.1f} s after "
                "the start of the measured steps."
            )
        return
    touches = time_s > window.start_unix_s and before_s < window.end_unix_s
    if touches and time_s - before_s > longest_s:
        raise _InvalidError(
            f"{where}: no power sample for {time_s - before_s:.1f} s within the measured steps, "
            f"where {longest_s:.1f} s is allowed."
        )


Field = float | int | str | bool | None


def _rows(path: Path, columns: Sequence[Column]) -> Iterator[tuple[int, dict[str, Field]]]:
    """Line number and parsed row of a CSV file, one at a time; a torn last line is left out."""
    names = [column.name for column in columns]
    header_seen = False
    with path.open("rb") as stream:
        for line, raw in enumerate(stream, start=1):
            if not raw.endswith(b"\n"):
                break
            fields = raw.decode("utf-8", "replace").rstrip("\r\n").split(",")
            if line == 1:
                if fields != names:
                    raise _InvalidError(f"{path}, line 1: not the expected column names.")
                header_seen = True
                continue
            if len(fields) != len(names):
                raise _InvalidError(
                    f"{path}, line {line}: {len(fields)} fields, expected {len(names)}."
                )
            try:
                row = {c.name: _parse(f, c) for c, f in zip(columns, fields, strict=True)}
            except ValueError as error:
                raise _InvalidError(f"{path}, line {line}: {error}.") from None
            yield line, row
    if not header_seen:
        raise _InvalidError(f"{path} is empty.")


def _parse(text: str, column: Column) -> Field:
    if text == "":
        return None
    if column.type is str:
        return text
    try:
        value: float | int = int(text) if column.type is int else float(text)
    except ValueError:
        raise ValueError(f"{column.name} is {text[:40]!r}, expected a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{column.name} is {text!r}, expected a finite number")
    return value
