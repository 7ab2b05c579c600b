"""A run's GPUs over time, for figures: means of the readings in intervals of equal length."""

from __future__ import annotations

import math

import polars as pl

from workflow_lib.analysis import metrics
from workflow_lib.analysis.gpus import airflow_of
from workflow_lib.analysis.recordings import Recordings
from workflow_lib.analysis.steps import Steps
from workflow_lib.analysis.tables import schema
from workflow_lib.records import SERIES, SERIES_POINTS, Hardware

#: an interval holds so many sample periods at least
_LEAST_PERIODS = 2.0

#: column of SERIES → what of a reading it is the mean of, and to how many decimals it is kept: a
#: figure shows no more, and a file of few digits is small
_SAMPLED = {
    "temperature_c": (pl.col("temperature_c"), 1),
    "sm_clock_mhz": (pl.col("sm_clock_mhz"), 0),
    **{f"{name}_share": (value, 3) for name, value in metrics.EVENTS.items()},
}
_POWER = {"power_w": (pl.col("power_w"), 1)}


def series_rows(hardware: Hardware, steps: Steps, recordings: Recordings) -> pl.DataFrame:
    """Rows of SERIES, less ``cell`` and ``run``, in the order of node, GPU and time.

    They cover all steps, warm-up included, in at most :data:`SERIES_POINTS` intervals. A node
    without telemetry has none. A GPU has a row for each interval in which anything was read of it.
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
    slowest_hz = min(each.start.sample_rate_hz for each in recordings.nodes.values())
    interval_s = max((end - start) / SERIES_POINTS, _LEAST_PERIODS / slowest_hz)
    # A reading at the very end belongs to the last interval.
    last = max(math.ceil((end - start) / interval_s) - 1, 0)
    place = ((pl.col("unix_time_s") - start) / interval_s).floor().clip(0, last)
    # One number is grouped by faster than two.
    group = pl.col("sensor") * (last + 1) + place.cast(pl.Int64)
    read, power = (
        rows.filter(pl.col("unix_time_s").is_between(start, end))
        .group_by(group.alias("group"))
        .agg(value.mean().round(decimals).alias(name) for name, (value, decimals) in values.items())
        for rows, values in ((recordings.samples, _SAMPLED), (recordings.power, _POWER))
    )
    gpus = [
        {
            "sensor": recordings.sensor(node, gpu),
            "node": node,
            "gpu": gpu,
            "airflow": airflow_of(gpu, hardware),
        }
        for node, each in recordings.nodes.items()
        for gpu in each.gpus
    ]
    return (
        read.join(power, on="group", how="full", coalesce=True)
        .with_columns(sensor=pl.col("group") // (last + 1), place=pl.col("group") % (last + 1))
        .join(pl.DataFrame(gpus), on="sensor")
        .sort("sensor", "place")
        .with_columns(
            elapsed_s=start - began + (pl.col("place") + 0.5) * interval_s,
            interval_s=pl.lit(interval_s),
        )
        .select(names)
    )
