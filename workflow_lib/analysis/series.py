"""A run's GPUs over time, for figures: means of the readings in intervals of equal length.

One row for each step of a run: its time, its energy, and how warm its GPUs were.

A value that a rank did not record, or that a sensor did not read throughout the step, is null, with
the reason. A sum over the others would make the step look cheaper than it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from workflow_lib.analysis import metrics
from workflow_lib.analysis.counters import Counted
from workflow_lib.analysis.gpus import airflow_of
from workflow_lib.analysis.integrals import Floats, Numbers
from workflow_lib.analysis.known import Why, missing_of
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.nodes import mean_over_spans
from workflow_lib.analysis.recordings import Recordings
from workflow_lib.analysis.steps import Steps, loss_of_ranks
from workflow_lib.records.cell import Cell, Hardware
from workflow_lib.records.columns import sampled
from workflow_lib.records.reasons import Reason
from workflow_lib.records.tables import SERIES, SERIES_POINTS
from workflow_lib.records.telemetry_columns import GPU_SAMPLES
from workflow_lib.table_files import schema
from workflow_lib.words import counted as in_words

#: an interval holds at least this many sample periods
_LEAST_PERIODS = 2.0

#: column of SERIES → the quantity that it is the mean of, and the decimals that are kept: figures
#: show no more, and fewer digits make a smaller file
_SAMPLED = {
    "temperature_c": (pl.col("temperature_c"), 1),
    "sm_clock_mhz": (pl.col("sm_clock_mhz"), 0),
    **{f"{name}_share": (value, 3) for name, value in metrics.EVENTS.items()},
}
_POWER = {"power_w": (pl.col("power_w"), 1)}


def series_rows(hardware: Hardware, steps: Steps, recordings: Recordings) -> pl.DataFrame:
    """Rows of SERIES, less ``cell`` and ``run``, in the order of node, GPU and time.

    They cover all steps, warm-up included, in at most :data:`SERIES_POINTS` intervals. A node
    without telemetry has no rows. A GPU has a row for each interval in which any of its readings
    lies.
    """
    names = [column.name for column in SERIES if column.name not in ("cell", "run")]
    if not recordings.nodes:
        types = schema(SERIES)
        return pl.DataFrame(schema={name: types[name] for name in names})
    start, end = steps.rows.select(
        pl.col("started_unix_s").min(), pl.col("ended_unix_s").max()
    ).row(0)
    measured = steps.rows.filter(pl.col("phase") == "measured")
    began = measured.select(pl.col("started_unix_s").min()).item()
    slowest_hz = min(node.start.sample_rate_hz for node in recordings.nodes.values())
    interval_s = max((end - start) / SERIES_POINTS, _LEAST_PERIODS / slowest_hz)
    # A reading at the very end belongs to the last interval.
    count = max(math.ceil((end - start) / interval_s), 1)
    size = recordings.stride * len(recordings.nodes) * count
    present = np.zeros(size, dtype=bool)
    means: dict[str, Floats] = {}
    for rows, values in ((recordings.samples, _SAMPLED), (recordings.power, _POWER)):
        times = rows["unix_time_s"].to_numpy()
        inside = (times >= start) & (times <= end)
        places = np.floor((times[inside] - start) / interval_s).clip(0, count - 1)
        groups = rows["sensor"].to_numpy()[inside] * count + places.astype(np.int64)
        present[groups] = True
        of_rows = rows.select(
            value.cast(pl.Float64).alias(name) for name, (value, _) in values.items()
        )
        for name in values:
            means[name] = _means(groups, of_rows[name].to_numpy()[inside], size)
    gpus = [
        {"node": node, "gpu": gpu, "airflow": airflow_of(gpu, hardware)}
        for node, recording in recordings.nodes.items()
        for gpu in recording.gpus
    ]
    sensors = np.array(recordings.sensors())
    shown = sensors[:, None] * count + np.arange(count)
    of_gpu, places = np.nonzero(present[shown])
    groups = shown[of_gpu, places]
    decimals = {name: digits for name, (_, digits) in (_SAMPLED | _POWER).items()}
    return (
        pl.DataFrame(gpus)[of_gpu]
        .with_columns(
            pl.Series("elapsed_s", start - began + (places + 0.5) * interval_s),
            *(pl.Series(name, of_all[groups]) for name, of_all in means.items()),
            interval_s=pl.lit(interval_s),
        )
        .with_columns(
            pl.col(name).fill_nan(None).round(digits) for name, digits in decimals.items()
        )
        .select(names)
    )


def _means(groups: Numbers, values: Floats, size: int) -> Floats:
    """The mean of ``values`` in each of ``size`` groups, of shape (size,). ``groups`` holds the
    group of each value. NaN values are left out; the mean of a group without values is NaN."""
    known = ~np.isnan(values)
    if not known.all():
        groups, values = groups[known], values[known]
    counts = np.bincount(groups, minlength=size)
    sums = np.bincount(groups, weights=values, minlength=size)
    means = np.full(size, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


#: columns of STEP_TIMES that come from telemetry
_OF_POWER = ("energy_j", "power_mean_w")
_OF_TEMPERATURE = ("temperature_mean_c", "hottest_c", "hottest_node", "hottest_gpu")
_OF_CLOCK = ("sm_clock_mean_mhz",)
_READINGS = sampled(GPU_SAMPLES)


def step_rows(
    cell: Cell,
    steps: Steps,
    recordings: Recordings | None,
    unknown: Why,
    no_power: Why,
    counted: Mapping[int, Counted],
) -> list[dict[str, Any]]:
    """Rows of STEP_TIMES, less ``cell`` and ``run``, in the order of steps.

    There is a row for every step, warm-up included. ``unknown`` is why there is no telemetry, and
    ``no_power`` why power cannot be added up over GPUs; each is "" if there is no such reason. What
    :func:`~workflow_lib.analysis.counters.counted_shares` found, ``counted``, makes the energies of
    counted steps add up to ``energy_j``.
    """
    rows = _as_trained(cell, steps)
    windows = [row.pop("window") for row in rows]
    readings: list[tuple[str, tuple[str, ...], Why]] = [
        ("power_w", _OF_POWER, unknown or no_power),
        ("temperature_c", _OF_TEMPERATURE, unknown),
        ("sm_clock_mhz", _OF_CLOCK, unknown),
    ]
    for quantity, columns, reason in readings:
        by_step: Sequence[Mapping[str, Any] | Why] = [reason] * len(rows)
        if recordings is not None and not reason:
            by_step = _over_gpus(cell, recordings, quantity, windows, counted)
        for row, window, figures in zip(rows, windows, by_step, strict=True):
            lacking: dict[str, Why] = row["missing"]
            if row["step_time_s"] is None:  # its beginning and end are not known
                lacking |= dict.fromkeys(columns, lacking["step_time_s"])
            elif isinstance(figures, str):
                lacking |= dict.fromkeys(columns, figures)
            elif quantity == "power_w":
                row["power_mean_w"] = figures["sum"]
                row["energy_j"] = figures["sum"] * window.duration_s
            elif quantity == "temperature_c":
                row["temperature_mean_c"] = figures["mean"]
                row["hottest_c"] = figures["highest"]
                row["hottest_node"], row["hottest_gpu"] = figures["node"], figures["gpu"]
            else:
                row["sm_clock_mean_mhz"] = figures["mean"]
    for row in rows:
        row |= missing_of({name: (None, why) for name, why in row.pop("missing").items()})
    return rows


def _as_trained(cell: Cell, steps: Steps) -> list[dict[str, Any]]:
    """What the ranks recorded of each step, with its ``window``, and ``missing`` reasons."""
    began = steps.rows.filter(pl.col("phase") == "measured")["started_unix_s"].min()
    duration = pl.col("ended_unix_s") - pl.col("started_unix_s")
    frame = (
        steps.rows.group_by("step")
        .agg(
            pl.col("phase").first(),
            start=pl.col("started_unix_s").min(),
            end=pl.col("ended_unix_s").max(),
            ranks=pl.len(),
            slowest_rank=pl.col("rank").get(duration.arg_max()),
            rank_spread_s=duration.max() - duration.min(),
            tokens=pl.col("tokens").filter(pl.col("dp_rank").is_first_distinct()).sum(),
            loss=pl.col("loss").drop_nulls().first(),
            lowest=pl.col("loss").min(),
            highest=pl.col("loss").max(),
            # Of all ranks or of none: the one that is missing may be the fullest.
            memory_peak_bytes=pl.when(pl.col("memory_peak_bytes").null_count() == 0)
            .then(pl.col("memory_peak_bytes").max())
            .cast(pl.Float64),
        )
        .sort("step")
    )
    count, first = cell.degrees.world_size, steps.first
    rows = []
    for of_step in frame.iter_rows(named=True):
        window = Window(of_step.pop("start"), of_step.pop("end"))
        row: dict[str, Any] = {
            **of_step,
            "counted": of_step["phase"] == "measured" and of_step["step"] >= first,
            "elapsed_s": window.start_unix_s - began,  # type: ignore[operator]
            "step_time_s": window.duration_s,
            "window": window,
            "missing": {},
        }
        lacking: dict[str, Why] = row["missing"]
        if (present := row.pop("ranks")) < count:
            why = Reason("ranks_lack_step", present=present, ranks=in_words(count, "rank"))
            for name in ("step_time_s", "slowest_rank", "rank_spread_s", "tokens"):
                row[name], lacking[name] = None, why
        row["loss"], no_loss = loss_of_ranks(row["loss"], row.pop("lowest"), row.pop("highest"))
        for name, reason in (
            ("loss", no_loss),
            ("memory_peak_bytes", Reason("rank_memory_not_recorded")),
        ):
            if row[name] is None:
                lacking[name] = reason
        rows.append(row)
    return rows


def _over_gpus(
    cell: Cell,
    recordings: Recordings,
    quantity: str,
    windows: Sequence[Window],
    counted: Mapping[int, Counted],
) -> list[Mapping[str, Any] | Reason]:
    """Each window's mean of a quantity, combined over GPUs, or why it is not known."""
    size = cell.hardware.gpus_per_package if quantity == "power_w" else None
    sensors = recordings.sensors(size)
    means = mean_over_spans(recordings, sensors, quantity, windows)
    if quantity == "power_w":
        means *= np.array([counted[sensor].share or 1.0 for sensor in sensors])[:, None]
    rate_hz = max(node.start.sample_rate_hz for node in recordings.nodes.values())
    bridged_s = _READINGS[quantity].bridged_s(rate_hz)
    # Gaps that are too long are not interpolated.
    rows = {sensor: row for row, sensor in enumerate(sensors)}
    for sensor, start, end in recordings.of(quantity).holes(quantity, bridged_s):
        for place, window in enumerate(windows):
            if sensor in rows and window.start_unix_s < end and start < window.end_unix_s:
                means[rows[sensor], place] = np.nan
    without = np.isnan(means)
    sums = means.sum(axis=0).tolist()
    combined: list[Mapping[str, Any] | Reason] = []
    for place, total in enumerate(sums):
        if without[:, place].any():
            node, gpu = recordings.place(sensors[int(without[:, place].argmax())])
            combined.append(Reason("not_read_in_step", node=node, gpu=gpu, quantity=quantity))
            continue
        hottest = int(means[:, place].argmax())
        node, gpu = recordings.place(sensors[hottest])
        figures = {"sum": total, "mean": total / len(sensors)}
        figures["highest"] = means[hottest, place].item()
        combined.append({**figures, "node": node, "gpu": gpu})
    return combined
