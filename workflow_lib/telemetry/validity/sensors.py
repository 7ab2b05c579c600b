"""Checks whether a node's sensors are plausible over a window of time.

Readings of power must cover the window, must change, and must agree with the energy counter, which
must move. A reading above what the GPU can draw is no reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workflow_lib import gpu_models
from workflow_lib.records.columns import Column
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import Field, read_csv
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
)
from workflow_lib.telemetry.validity import InvalidTelemetryError
from workflow_lib.telemetry.validity.counter_span import CounterSpan
from workflow_lib.telemetry.validity.trapezoid import part_within

#: columns that every row of a GPU has
_TIMED = ("unix_time_s", "gpu")
#: the longest time between two power samples: this, or so many periods if that is longer
_LONGEST_GAP_S = 1.0
_LONGEST_GAP_PERIODS = 5
#: an energy counter must move within this time; drivers renew it about every 0.1 s
_MOVES_WITHIN_S = 1.0
#: the largest relative difference between trapezoid and counter, and the shortest span over which
#: they are compared
_LARGEST_DIFFERENCE = 0.05
_COMPARED_FROM_S = 10.0
#: A reading of power also lags: by half of the time that it is a mean over, and by the time until
#: the driver renews it (on H200, with a mean over 1 s, by 0.56 s in all). If power changes at an
#: edge of the span, for example from idle to full, the lag adds or removes that much energy. Under
#: a constant load they agree to parts of a percent. An unknown GPU model gets the longest mean that
#: NVML documents.
_RENEWAL_S = 0.1
_LONGEST_WINDOW_S = 1.0
#: A sensor is frozen if it shows the same value in this many readings over this long. A working
#: sensor that resolves mW never does. One that resolves W may do so at its power limit, so whole
#: watts do not count as frozen.
_FROZEN_FROM_S = 10.0
_FROZEN_FROM_READINGS = 20
#: the message about a gap names a jump of the clock only above this: a driver that delays a tick
#: explains shorter ones
_JUMP_S = 60.0
#: readings that change while a GPU works, even if its power stays at the limit
_SIGNS_OF_LIFE = ("temperature_c", "sm_clock_mhz", "event_reasons", "utilisation_percent")


@dataclass
class _Gap:
    """A gap between two readings of a GPU's power, and the driver's samples within it."""

    where: str
    gpu: int
    end_s: float
    #: until when power is known
    known_until_s: float
    #: by how much the wall clock was set ahead in the gap; the sampler's deadlines do not use it
    jump_s: float
    longest_hole_s: float = 0.0

    def add(self, time_s: float) -> None:
        """Add the GPU's next sample, or the reading after the gap."""
        if self.known_until_s < time_s <= self.end_s:
            self.longest_hole_s = max(self.longest_hole_s, time_s - self.known_until_s)
            self.known_until_s = time_s


@dataclass
class _Sensor:
    """What was read of one power sensor so far."""

    energy: CounterSpan
    #: times of the last reading of power, and of the last row
    time_s: float | None = None
    row_time_s: float | None = None
    power_w: float = 0.0
    #: the trapezoid of power between the ends of the energy counter's span
    trapezoid_j: float = 0.0
    #: the lowest and the highest power within it
    lowest_w: float = math.inf
    highest_w: float = -math.inf
    readings: int = 0
    #: the first row with power in the window, and whether power differed from it later
    first: dict[str, Field] = field(default_factory=dict)
    first_time_s: float = 0.0
    power_changed: bool = False
    signs: dict[str, Field] = field(default_factory=dict)
    lives: bool = False


def check_sensors(
    paths: RunPaths, start: TelemetryStart, sensors: Sequence[int], window: tuple[float, float]
) -> None:
    """Check the power sensors of a node over ``window``, its start and end in Unix time.

    ``sensors`` are the GPUs that report power. Raises InvalidTelemetryError with the reason if a
    sensor fails a check, and FileNotFoundError for a missing file.
    """
    count = len(start.gpus)
    _check_lost(paths, start, window)
    seen = {gpu: _Sensor(CounterSpan(*window)) for gpu in sensors}
    _check_counters(paths, start, count, seen)
    _check_host(paths.host_samples(start.node))
    longest_s = max(_LONGEST_GAP_S, _LONGEST_GAP_PERIODS / start.sample_rate_hz)
    path = paths.gpu_samples(start.node)
    most_w = [gpu_models.most_power_w(gpu) for gpu in start.gpus]
    gaps: list[_Gap] = []
    for where, row in _timed_rows(path, GPU_SAMPLES, _TIMED, count):
        time_s, gpu, power_w = row["unix_time_s"], row["gpu"], row["power_w"]
        if not isinstance(gpu, int) or not isinstance(time_s, float) or gpu not in seen:
            continue
        sensor = seen[gpu]
        if isinstance(power_w, float) and power_w <= most_w[gpu]:
            if _has_gap(sensor.time_s, time_s, window, longest_s, where):
                since_s = time_s - (sensor.row_time_s or time_s)
                jump_s = since_s - late_s if isinstance(late_s := row["lateness_s"], float) else 0
                gaps.append(_Gap(where, gpu, time_s, sensor.time_s or time_s, jump_s))
            _integrate(sensor, time_s, power_w)
            _note(sensor, time_s, row, window)
        sensor.row_time_s = time_s
    _check_bridged(paths.power_samples(start.node), gaps, longest_s, most_w)
    for gpu, sensor in seen.items():
        _check_end(f"{path}: ", gpu, sensor, window)
        if not start.simulated:
            _check_frozen(f"{path}: ", gpu, sensor)
        _check_agreement(f"{paths.gpu_counters(start.node)}: ", gpu, sensor, start.gpus[gpu])


def _check_lost(paths: RunPaths, start: TelemetryStart, window: tuple[float, float]) -> None:
    path = paths.gpu_events(start.node)
    if not path.is_file():
        return
    for line, row in read_csv(path, GPU_EVENTS):
        time_s = row["unix_time_s"]
        if row["event"] == "lost" and isinstance(time_s, float) and time_s <= window[1]:
            raise InvalidTelemetryError(
                f"{path}, line {line}: GPU {row['gpu']} was lost to the driver "
                f"{window[1] - time_s:.1f} s before the end of the measured steps."
            )


def _check_counters(
    paths: RunPaths, start: TelemetryStart, count: int, seen: dict[int, _Sensor]
) -> None:
    path = paths.gpu_counters(start.node)
    for _, row in _timed_rows(path, GPU_COUNTERS, _TIMED, count):
        time_s, gpu, energy_j = row["unix_time_s"], row["gpu"], row["energy_j"]
        if gpu not in seen or not isinstance(energy_j, float):
            continue
        assert isinstance(gpu, int)
        assert isinstance(time_s, float)
        seen[gpu].energy.add(time_s, energy_j)
    for gpu, sensor in seen.items():
        span = sensor.energy
        if span.fell:
            raise InvalidTelemetryError(
                f"{path}: the energy counter of GPU {gpu} ran backwards within the measured steps."
            )
        ends = span.ends()
        if ends is None:
            duration_s = span.end_unix_s - span.start_unix_s
            if duration_s >= _COMPARED_FROM_S and "energy_j" not in start.missing:
                raise InvalidTelemetryError(
                    f"{path}: the readings of GPU {gpu}'s energy counter do not cover the "
                    "measured steps."
                )
        elif (
            ends[1].unix_time_s - ends[0].unix_time_s >= _MOVES_WITHIN_S
            and ends[1].value <= ends[0].value
        ):
            raise InvalidTelemetryError(
                f"{path}: the energy counter of GPU {gpu} stood still for "
                f"{ends[1].unix_time_s - ends[0].unix_time_s:.1f} s."
            )


def _check_host(path: Path) -> None:
    """Check only that the file can be read. The analysis reads it later. If only the analysis found
    the damage, it would fail for a completed run each time, and the run would not be repeated.
    """
    if path.is_file():
        for _ in _timed_rows(path, HOST_SAMPLES, _TIMED[:1]):
            pass


def _timed_rows(
    path: Path, columns: Sequence[Column], required: Sequence[str], gpus: int | None = None
) -> Iterator[tuple[str, dict[str, Field]]]:
    """Yield the place of each row, for messages, and its fields. Check the order of their times.

    Every row must have the columns ``required``, the first of which is the time. Times may not run
    backwards: for each GPU, or in the whole file if it has no GPUs. ``gpus`` is the number of GPUs;
    None if it is not known. Raises the errors of :func:`read_csv`, and InvalidTelemetryError.
    """
    latest: dict[Field, float] = {}
    for line, row in read_csv(path, columns, required):
        where = f"{path}, line {line}"
        now, gpu = row[required[0]], row.get("gpu")
        assert isinstance(now, float | int)
        if isinstance(gpu, int):
            if gpu < 0 or (gpus is not None and gpu >= gpus):
                raise InvalidTelemetryError(f"{where}: there is no GPU {gpu} on this node.")
            where += f": GPU {gpu}"
        if now < latest.get(gpu, -math.inf):
            raise InvalidTelemetryError(f"{where}: the clock went backwards.")
        latest[gpu] = now
        yield where, row


def _has_gap(
    before_s: float | None,
    time_s: float,
    window: tuple[float, float],
    longest_s: float,
    where: str,
) -> bool:
    start_s, end_s = window
    if before_s is None:
        if time_s > start_s:
            raise InvalidTelemetryError(
                f"{where}: the first power sample is {time_s - start_s:.1f} s after "
                "the start of the measured steps."
            )
        return False
    return time_s > start_s and before_s < end_s and time_s - before_s > longest_s


def _check_bridged(
    path: Path, gaps: Sequence[_Gap], longest_s: float, most_w: Sequence[float]
) -> None:
    """Raise InvalidTelemetryError if the driver's own samples do not fill the gaps.

    If the sampler was delayed, for example by a file system, the driver went on sampling and keeps
    the samples of 2.4 s. The whole file is read, for the reason that :func:`_check_host` gives.
    """
    # Both the gaps and the samples of a GPU are in order of time.
    waiting: dict[Field, list[_Gap]] = {}
    for gap in reversed(gaps):
        waiting.setdefault(gap.gpu, []).append(gap)
    if path.is_file():
        required = [column.name for column in POWER_SAMPLES]
        for _, row in _timed_rows(path, POWER_SAMPLES, required):
            time_us, gpu, power_mw = row["driver_time_us"], row["gpu"], row["power_mw"]
            assert isinstance(time_us, int)
            assert isinstance(gpu, int)
            assert isinstance(power_mw, int)
            of_gpu = waiting.get(gpu, [])
            while of_gpu and time_us / 1e6 > of_gpu[-1].end_s:
                of_gpu.pop()
            if of_gpu and power_mw <= 1000 * most_w[gpu]:
                of_gpu[-1].add(time_us / 1e6)
    for gap in gaps:
        gap.add(gap.end_s)
        if gap.longest_hole_s > longest_s:
            cause = f": the clock was set ahead by {gap.jump_s:.1f} s" * (gap.jump_s > _JUMP_S)
            raise InvalidTelemetryError(
                f"{gap.where}: no power sample for {gap.longest_hole_s:.1f} s within the measured "
                f"steps, where {longest_s:.1f} s is allowed{cause}."
            )


def _integrate(sensor: _Sensor, time_s: float, power_w: float) -> None:
    """Add to the trapezoid the time since the last reading, cut to the energy counter's span."""
    ends = sensor.energy.ends()
    if ends is not None and sensor.time_s is not None:
        latest = sensor.time_s, sensor.power_w
        first, last = ends
        part = part_within(latest, (time_s, power_w), first.unix_time_s, last.unix_time_s)
        if part is not None:
            sensor.trapezoid_j += part.duration_s * part.middle
            sensor.lowest_w = min(sensor.lowest_w, sensor.power_w, power_w)
            sensor.highest_w = max(sensor.highest_w, sensor.power_w, power_w)
    sensor.time_s, sensor.power_w = time_s, power_w


def _note(
    sensor: _Sensor, time_s: float, row: dict[str, Field], window: tuple[float, float]
) -> None:
    if not window[0] <= time_s <= window[1]:
        return
    if not sensor.readings:
        sensor.first, sensor.first_time_s = row, time_s
    sensor.readings += 1
    sensor.power_changed |= row["power_w"] != sensor.first["power_w"]
    for name in _SIGNS_OF_LIFE:
        # Some columns are not read at every tick.
        if row[name] is not None and not sensor.lives:
            first = sensor.signs.setdefault(name, row[name])
            sensor.lives = row[name] != first


def _check_end(where: str, gpu: int, sensor: _Sensor, window: tuple[float, float]) -> None:
    if sensor.time_s is None:
        raise InvalidTelemetryError(f"{where}GPU {gpu} has no power sample.")
    if sensor.time_s < window[1]:
        raise InvalidTelemetryError(
            f"{where}the last power sample of GPU {gpu} is {window[1] - sensor.time_s:.1f} s "
            "before the end of the measured steps."
        )


def _check_frozen(where: str, gpu: int, sensor: _Sensor) -> None:
    power_w = sensor.first.get("power_w")
    if sensor.power_changed or not sensor.lives or not isinstance(power_w, float):
        return
    covered_s = sensor.energy.end_unix_s - sensor.first_time_s
    if (
        sensor.readings >= _FROZEN_FROM_READINGS
        and covered_s >= _FROZEN_FROM_S
        and not power_w.is_integer()
    ):
        raise InvalidTelemetryError(
            f"{where}the power of GPU {gpu} is {power_w} W in all {sensor.readings} samples of the "
            "measured steps, while other readings of it change: its sensor is frozen."
        )


def _lag_j(entry: Mapping[str, Any], sensor: _Sensor) -> float:
    """The energy in J that the lag of a GPU's readings may add or remove: at an edge of the span
    its power changes by no more than its limit, however high a reading is."""
    model = gpu_models.of_device(str(entry.get("name")))
    window_s = None if model is None else model.reading_window_s
    lag_s = (_LONGEST_WINDOW_S if window_s is None else window_s) / 2 + _RENEWAL_S
    limit_w = gpu_models.highest_limit_w(entry)
    change_w = max(sensor.highest_w - sensor.lowest_w, 0.0)
    return lag_s * (change_w if limit_w is None else min(change_w, limit_w))


def _check_agreement(where: str, gpu: int, sensor: _Sensor, entry: Mapping[str, Any]) -> None:
    ends = sensor.energy.ends()
    if ends is None or ends[1].unix_time_s - ends[0].unix_time_s < _COMPARED_FROM_S:
        return
    counted_j = ends[1].value - ends[0].value
    lag_j = _lag_j(entry, sensor)
    beside = f" and what lag explains ({lag_j:.0f} J)" if lag_j else ""
    if abs(counted_j - sensor.trapezoid_j) > _LARGEST_DIFFERENCE * counted_j + lag_j:
        raise InvalidTelemetryError(
            f"{where}the energy counter of GPU {gpu} advanced by {counted_j:.0f} J in "
            f"{ends[1].unix_time_s - ends[0].unix_time_s:.1f} s about the measured steps, its "
            f"power adds up to {sensor.trapezoid_j:.0f} J: more than "
            f"{_LARGEST_DIFFERENCE:.0%} apart{beside}."
        )
