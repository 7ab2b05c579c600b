"""A run's GPUs over time, for figures: means of the readings in intervals of equal length."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from workflow_lib.analysis import metrics
from workflow_lib.analysis.gpus import airflow_of
from workflow_lib.analysis.integrals import Floats, Numbers
from workflow_lib.analysis.recordings import Recordings
from workflow_lib.analysis.steps import Steps
from workflow_lib.analysis.tables import schema
from workflow_lib.records import SERIES, SERIES_POINTS, Hardware

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
        for node, each in recordings.nodes.items()
        for gpu in each.gpus
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
