"""Chooses where each GPU's power is taken from: the driver's own samples, or readings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from workflow_lib.analysis.integrals import Floats
from workflow_lib.analysis.metrics import Window

#: a longer time without one of the driver's samples is a hole
_LONGEST_HOLE_S = 1.0
#: Both sources show the same mean power but for this share, and for what a reading lags: by half of
#: the second that it is a mean over, and by the 0.1 s until it is renewed.
_LARGEST_DIFFERENCE = 0.05
_LAG_S = 0.6


def best_power(
    samples: pl.DataFrame, driver: pl.DataFrame
) -> tuple[pl.DataFrame, Mapping[int, str]]:
    """Each GPU's power (``sensor``, ``unix_time_s``, ``power_w``), and sensor → "driver" or
    "readings".

    The driver's own samples are taken if they have no hole from the first reading to the last. On
    H200 they come every 20 ms and follow the load at once, while a reading is the mean of the last
    second. A GPU has one source for its whole run, so that parts of the run can be compared.
    Only readings are checked against the energy counter
    (:mod:`workflow_lib.telemetry.validity.sensors`), so samples that disagree with them are not
    taken. ``samples`` and ``driver`` are sorted by sensor and time.
    """
    readings = samples.select("sensor", "unix_time_s", "power_w").drop_nulls("power_w")
    spans = _spans(readings)
    # The driver also gives samples from before the first reading, perhaps of another job.
    sensors = driver["sensor"].to_numpy()
    begins = np.full(1 + max([0, *spans, *sensors[-1:].tolist()]), np.inf)
    for each, span in spans.items():
        begins[each] = span.start_unix_s
    later = driver["unix_time_s"].to_numpy() >= begins[sensors]
    driver = driver.select("sensor", "unix_time_s", power_w=pl.col("power_mw") / 1000).filter(later)
    sensors, times = driver["sensor"].to_numpy(), driver["unix_time_s"].to_numpy()
    holes = (np.diff(times) > _LONGEST_HOLE_S) & (np.diff(sensors) == 0)
    torn = set(sensors[1:][holes].tolist())
    known = {
        each
        for each, span in _spans(driver).items()
        if each not in torn
        and span.start_unix_s - spans[each].start_unix_s <= _LONGEST_HOLE_S
        and spans[each].end_unix_s - span.end_unix_s <= _LONGEST_HOLE_S
    }
    whole = known & _agreeing(readings, driver)
    sources = {span: "driver" if span in whole else "readings" for span in spans}
    if len(whole) < len(sources):
        of_driver = pl.col("sensor").is_in(sorted(whole))
        parts = [readings.filter(~of_driver), driver.filter(of_driver)]
        return pl.concat(parts).sort("sensor", maintain_order=True), sources
    return driver, sources


def _agreeing(readings: pl.DataFrame, driver: pl.DataFrame) -> set[int]:
    """The sensors whose mean power is the same by both sources, over the time that both cover."""
    found = set()
    of_driver = _series(driver)
    for sensor, (read, power) in _series(readings).items():
        sampled, samples = of_driver.get(sensor, (read[:0], power[:0]))
        if not sampled.size:
            continue
        begin, end = max(read[0], sampled[0]), min(read[-1], sampled[-1])
        if end <= begin:
            continue
        mean, other = (_mean(*each, begin, end) for each in ((read, power), (sampled, samples)))
        lag_w = _LAG_S * (power.max() - power.min()) / (end - begin)
        if abs(other - mean) <= _LARGEST_DIFFERENCE * mean + lag_w:
            found.add(sensor)
    return found


def _mean(times: Floats, values: Floats, begin: float, end: float) -> float:
    """The time-weighted mean from ``begin`` to ``end``, which readings reach."""
    inside = (times > begin) & (times < end)
    at = np.concatenate([[begin], times[inside], [end]])
    return float(np.trapezoid(np.interp(at, times, values), at) / (end - begin))


def _series(rows: pl.DataFrame) -> dict[int, tuple[Floats, Floats]]:
    """Sensor → the times and the powers of its rows."""
    sensors, times = rows["sensor"].to_numpy(), rows["unix_time_s"].to_numpy()
    firsts = np.flatnonzero(np.diff(sensors, prepend=-1))
    parts = (np.split(each, firsts[1:]) for each in (times, rows["power_w"].to_numpy()))
    return dict(zip(sensors[firsts].tolist(), zip(*parts, strict=True), strict=False))


def _spans(rows: pl.DataFrame) -> dict[int, Window]:
    """Sensor → the window from its first to its last row, in the order of sensors."""
    return {
        sensor: Window(float(times[0]), float(times[-1]))
        for sensor, (times, _) in _series(rows).items()
    }
