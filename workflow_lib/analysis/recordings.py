"""What was recorded on a node, read: tables of readings, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

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
#: a longer time without one of the driver's samples is a hole
_LONGEST_HOLE_S = 1.0


@dataclass(frozen=True)
class Recording:
    """A node's telemetry. A table whose file is missing has no rows, and ``absent`` says so."""

    node: str
    start: TelemetryStart
    end: TelemetryEnd | None
    samples: pl.DataFrame
    #: ``gpu``, ``unix_time_s`` and ``power_w``, from wherever each GPU has it best
    power: pl.DataFrame
    #: GPU → "driver" (its own samples) or "readings", for every GPU that power was read of
    power_sources: Mapping[int, str]
    counters: pl.DataFrame
    host: pl.DataFrame
    #: null where the driver's events were not recorded
    events: pl.DataFrame | None
    #: column → why none of its values was recorded
    absent: Mapping[str, str]

    def why_absent(self, column: str) -> str:
        """Why no row has a value of a column."""
        return self.absent.get(column, f"no sample has a {column}")


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
    power, power_sources = _power(paths.power_samples(node), samples)
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
    return Recording(
        node, start, end, samples, power, power_sources, counters, host, events, absent
    )


def _power(path: Path, samples: pl.DataFrame) -> tuple[pl.DataFrame, dict[int, str]]:
    """Each GPU's power, and where it is from.

    The driver's own samples are taken where they have no hole from the first reading to the last:
    every 20 ms on H200, they follow the load at once, where readings are the mean of the second
    before. One source serves the whole run of a GPU, so that its parts can be compared.
    """
    readings = samples.select("gpu", "unix_time_s", "power_w").drop_nulls("power_w")
    if not path.is_file():
        return readings, dict.fromkeys(readings["gpu"].unique().sort().to_list(), "readings")
    names = tuple(column.name for column in POWER_SAMPLES)
    driver = read_rows(path, POWER_SAMPLES, names).select(
        "gpu", unix_time_s=pl.col("driver_time_us") / 1e6, power_w=pl.col("power_mw") / 1000
    )
    _check_order(path, driver, ("gpu",))
    spans = readings.group_by("gpu").agg(
        begin_unix_s=pl.col("unix_time_s").first(), end_unix_s=pl.col("unix_time_s").last()
    )
    time = pl.col("unix_time_s")
    # The driver remembers what was before the first reading: perhaps another job.
    driver = driver.join(spans, on="gpu").filter(time >= pl.col("begin_unix_s"))
    whole = (
        driver.group_by("gpu")
        .agg(
            gap_s=pl.max_horizontal(
                time.diff().max(),
                time.first() - pl.col("begin_unix_s").first(),
                pl.col("end_unix_s").first() - time.last(),
            )
        )
        .filter(pl.col("gap_s") <= _LONGEST_HOLE_S)["gpu"]
        .to_list()
    )
    best = pl.concat(
        [
            readings.filter(~pl.col("gpu").is_in(whole)),
            driver.select(readings.columns).filter(pl.col("gpu").is_in(whole)),
        ]
    )
    gpus = readings["gpu"].unique().sort().to_list()
    return best, {gpu: "driver" if gpu in whole else "readings" for gpu in gpus}


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
