"""What was recorded on a node, read: tables of readings, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.samples import read_rows
from workflow_lib.analysis.tables import schema
from workflow_lib.records import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
    Column,
    RecordError,
    RunPaths,
    TelemetryEnd,
    TelemetryStart,
    read_if_there,
    read_record,
)

#: what of the fast readings analysis looks at: hours of many nodes are kept at once
_SAMPLES = (
    "unix_time_s",
    "gpu",
    "power_w",
    "temperature_c",
    "sm_clock_mhz",
    "event_reasons",
)


@dataclass(frozen=True)
class Recording:
    """A node's telemetry. A table whose file is missing has no rows, and ``absent`` says so."""

    node: str
    start: TelemetryStart
    end: TelemetryEnd | None
    samples: pl.DataFrame
    counters: pl.DataFrame
    host: pl.DataFrame
    #: null where the driver's events were not recorded
    events: pl.DataFrame | None
    paths: RunPaths
    #: column → why none of its values was recorded
    absent: Mapping[str, str]

    def why_absent(self, column: str) -> str:
        """Why no row has a value of a column."""
        return self.absent.get(column, f"no sample has a {column}")

    def power_peaks(self, window: Window) -> dict[int, dict[str, float | None]]:
        """Of each GPU's power samples that the driver took by itself, within a window.

        GPU → ``peak_w``; ``longest_gap_s``, the longest time without one, edges included. They are
        many, so that they are read for this alone.
        """
        path = self.paths.power_samples(self.node)
        if not path.is_file():
            return {}
        samples = read_rows(path, POWER_SAMPLES, tuple(column.name for column in POWER_SAMPLES))
        time_s = pl.col("driver_time_us") / 1e6
        inside = (
            samples.lazy()
            .select("gpu", time_s=time_s, power_w=pl.col("power_mw") / 1000)
            .filter(pl.col("time_s").is_between(window.start_unix_s, window.end_unix_s))
            .group_by("gpu")
            .agg(
                peak_w=pl.col("power_w").max(),
                first_s=pl.col("time_s").min(),
                last_s=pl.col("time_s").max(),
                gap_s=pl.col("time_s").sort().diff().max(),
            )
            .select(
                "gpu",
                "peak_w",
                longest_gap_s=pl.max_horizontal(
                    "gap_s",
                    pl.col("first_s") - window.start_unix_s,
                    window.end_unix_s - pl.col("last_s"),
                ),
            )
            .collect()
        )
        return {row.pop("gpu"): row for row in inside.to_dicts()}


def read_recording(paths: RunPaths, node: str) -> Recording | str:
    """A node's telemetry, or why there is none. Raises RecordError where a file is damaged."""
    for path in (paths.telemetry_start(node), paths.gpu_samples(node)):
        if not path.is_file():
            return f"telemetry/{path.name} is missing"
    start = read_record(paths.telemetry_start(node), TelemetryStart)
    absent = dict(start.missing)
    timed = ("unix_time_s", "gpu")
    samples_path = paths.gpu_samples(node)
    samples = read_rows(samples_path, GPU_SAMPLES, timed).select(_SAMPLES)
    _check_order(samples_path, samples, ("gpu",))
    counters = _read_or_empty(paths.gpu_counters(node), GPU_COUNTERS, timed, absent)
    _check_order(paths.gpu_counters(node), counters, ("gpu",))
    host = _read_or_empty(paths.host_samples(node), HOST_SAMPLES, ("unix_time_s",), absent)
    _check_order(paths.host_samples(node), host, ())
    events_path = paths.gpu_events(node)
    events = None
    if events_path.is_file():
        events = read_rows(events_path, GPU_EVENTS, (*timed, "event"))
    else:
        absent.setdefault("event", f"telemetry/{events_path.name} is missing")
    end = read_if_there(paths.telemetry_end(node), TelemetryEnd)
    return Recording(node, start, end, samples, counters, host, events, paths, absent)


def _read_or_empty(
    path: Path, columns: Sequence[Column], required: Sequence[str], absent: dict[str, str]
) -> pl.DataFrame:
    if path.is_file():
        return read_rows(path, columns, required)
    for column in columns:
        if column.name not in required:
            absent.setdefault(column.name, f"telemetry/{path.name} is missing")
    return pl.DataFrame(schema=schema(columns))


def _check_order(path: Path, rows: pl.DataFrame, keys: Sequence[str]) -> None:
    time = pl.col("unix_time_s")
    earlier = time.shift(1).over(*keys) if keys else time.shift(1)
    back = rows.filter(time < earlier).select(*keys, "unix_time_s")
    if back.height:
        *of, moment = back.row(0)
        whose = f"the time of GPU {of[0]}" if of else "the time"
        raise RecordError(
            f"{path}: {whose} runs backwards at {moment}; the node's clock was set during the run, "
            "so that nothing can be integrated: run it again"
        )
