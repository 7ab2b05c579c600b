"""Integrals over time of GPU readings, prepared once so that the integral over any span is cheap.

At each reading, the integral since the GPU's first reading is stored. Between two readings the
quantity is taken to be a straight line, or, where a reading is the mean since the one before it
(``Kind`` in :mod:`workflow_lib.records.columns`), to be that mean. The integral over a span is the
difference of two such integrals, at its end and at its start. This is the rule of
:func:`workflow_lib.analysis.metrics.over_window`, but it does not go through all readings for each
span: a run has hundreds of spans, and each GPU tens of thousands of readings.

In arrays, NaN stands for what is not known; files never hold NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from workflow_lib.analysis.metrics import Window

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

#: readings of two GPUs are further apart than this on their common axis ``keys``
_BEYOND_S = 1.0


@dataclass(frozen=True)
class _Readings:
    """Readings of some quantities, without nulls, GPU by GPU in the order of time. Each array has
    one element for each row."""

    sensors: Numbers
    times: Floats
    #: seconds until the GPU's next reading; NaN at its last
    next_s: Floats
    #: the times of all GPUs on one axis, each GPU's ``apart_s`` after those of the GPU before
    keys: Floats
    values: Mapping[str, Floats]
    #: those of the quantities whose readings are means since the reading before
    means: Collection[str]
    origin_unix_s: float
    apart_s: float

    @staticmethod
    def of(samples: pl.DataFrame, names: Sequence[str], means: Collection[str]) -> _Readings:
        """Prepare readings.

        ``samples`` has ``sensor``, ``unix_time_s`` and ``names``, no nulls, and each GPU's rows in
        the order of time, after those of GPUs with lower numbers.
        """
        sensors, times = samples["sensor"].to_numpy(), samples["unix_time_s"].to_numpy()
        origin, end = (times.min(), times.max()) if times.size else (0.0, 0.0)
        apart_s = end - origin + 2 * _BEYOND_S
        next_s = np.full(times.size, np.nan)
        next_s[:-1] = np.where(sensors[1:] == sensors[:-1], times[1:] - times[:-1], np.nan)
        keys = sensors * apart_s + (times - origin)
        values = {name: samples[name].to_numpy() for name in names}
        return _Readings(sensors, times, next_s, keys, values, means, origin, apart_s)

    @cached_property
    def firsts(self) -> Numbers:
        """The row of each GPU's first reading, in the order of GPUs."""
        return np.flatnonzero(np.diff(self.sensors, prepend=-1))

    @cached_property
    def lasts(self) -> Numbers:
        """The row of each GPU's last reading, in the order of GPUs."""
        return np.flatnonzero(np.isnan(self.next_s))

    @cached_property
    def integrals(self) -> Mapping[str, Floats]:
        """The integral of each quantity up to each reading. The sum runs on from one GPU to the
        next, so only differences within one GPU have a meaning."""
        half_s = np.nan_to_num(self.next_s[:-1]) / 2
        integrals = {}
        for name, value in self.values.items():
            integrals[name] = np.zeros(value.size)
            first = value[1:] if name in self.means else value[:-1]
            np.cumsum(half_s * (first + value[1:]), out=integrals[name][1:])
        return integrals

    def until(self, sensors: Numbers, moments: Floats, names: Sequence[str]) -> list[Floats]:
        """The integral of each quantity up to each moment, NaN where readings do not reach."""
        if not self.times.size:
            return [np.full(moments.shape, np.nan) for _ in names]
        since_origin = np.clip(
            moments - self.origin_unix_s, -_BEYOND_S / 2, self.apart_s - _BEYOND_S
        )
        keys = sensors * self.apart_s + since_origin
        before = np.maximum(np.searchsorted(self.keys, keys, side="right") - 1, 0)
        after = np.minimum(before + 1, self.times.size - 1)
        since = moments - self.times[before]
        # Before a GPU's first reading, the search finds the last reading of another GPU, or row 0.
        reached = (sensors == self.sensors[before]) & (since >= 0)
        integrals = []
        for name in names:
            value, integral = self.values[name], self.integrals[name][before]
            at = value[after if name in self.means else before]
            # Beyond the last reading there is no next one, and this is NaN.
            with np.errstate(invalid="ignore", divide="ignore"):
                rise = since * since / self.next_s[before] * (value[after] - at) / 2
            inside = np.where(since == 0, integral, integral + since * at + rise)
            integrals.append(np.where(reached, inside, np.nan))
        return integrals


class Integrals:
    """Quantities of a run's GPUs over time; each GPU has a number in the run, its ``sensor``.

    ``samples`` has ``sensor`` and ``unix_time_s`` (s), sorted by both. ``quantities`` are computed
    from its columns, and are null where they were not read. Readings of
    those in ``means`` are means since the reading before.
    """

    def __init__(
        self, samples: pl.DataFrame, quantities: Mapping[str, pl.Expr], means: Collection[str] = ()
    ) -> None:
        frame = samples.select(
            "sensor",
            "unix_time_s",
            *(value.cast(pl.Float64).alias(f"_{name}") for name, value in quantities.items()),
        )
        frame = frame.rename({f"_{name}": name for name in quantities})
        whole = [name for name in quantities if not frame[name].null_count()]
        self._of: dict[str, _Readings] = {}
        if whole:
            self._of |= dict.fromkeys(whole, _Readings.of(frame, whole, means))
        for name in quantities:
            if name not in self._of:
                rows = frame.select("sensor", "unix_time_s", name).drop_nulls()
                self._of[name] = _Readings.of(rows, [name], means)

    def over(self, quantity: str, sensors: Numbers, starts: Floats, ends: Floats) -> Floats:
        """The integral (unit·s) over spans, NaN where readings do not reach to their ends.

        ``sensors``, ``starts`` and ``ends`` (s since the epoch) are broadcast to one shape.
        """
        sensors, starts, ends = np.broadcast_arrays(sensors, starts, ends)
        return self.until(quantity, sensors, ends) - self.until(quantity, sensors, starts)

    def until(self, quantity: str, sensors: Numbers, moments: Floats) -> Floats:
        """The integral (unit·s) up to each moment (s since the epoch), from a start that is fixed
        for each GPU: only the difference of two of them has a meaning. NaN where readings do not
        reach. The arrays and the result have one shape."""
        return self._of[quantity].until(sensors, moments, (quantity,))[0]

    def holes(self, quantity: str, longer_than_s: float) -> list[tuple[int, float, float]]:
        """The gaps longer than this between two readings of a quantity, as (sensor, start, end), in
        s since the epoch."""
        readings = self._of[quantity]
        rows = np.flatnonzero(readings.next_s > longer_than_s)
        start = readings.times[rows]
        end = start + readings.next_s[rows]
        return list(zip(readings.sensors[rows].tolist(), start.tolist(), end.tolist(), strict=True))

    def edges(self, quantity: str) -> dict[int, tuple[Window, float, float]]:
        """Sensor → the window from its first to its last reading, and the values of these two
        readings."""
        readings = self._of[quantity]
        firsts, lasts, value = readings.firsts, readings.lasts, readings.values[quantity]
        return {
            sensor: (Window(start, end), first, last)
            for sensor, start, end, first, last in zip(
                readings.sensors[firsts].tolist(),
                readings.times[firsts].tolist(),
                readings.times[lasts].tolist(),
                value[firsts].tolist(),
                value[lasts].tolist(),
                strict=True,
            )
        }

    def looks(self, window: Window) -> dict[str, dict[int, dict[str, Any]]]:
        """Statistics of each quantity within a window, as quantity → sensor → name → value.

        The names are ``integral``, ``readings``, ``peak``, ``lowest``, ``first_unix_s``,
        ``last_unix_s`` and ``longest_gap_s``, as in :func:`metrics.over_window`; but the integral
        is null where readings do not reach both ends of the window.
        """
        looks: dict[str, dict[int, dict[str, Any]]] = {}
        for readings in {id(readings): readings for readings in self._of.values()}.values():
            looks |= _looks(readings, window)
        return looks


def _looks(readings: _Readings, window: Window) -> dict[str, dict[int, dict[str, Any]]]:
    start, end = window.start_unix_s, window.end_unix_s
    times, firsts = readings.times, readings.firsts
    gpus = readings.sensors[firsts]
    inside = np.flatnonzero((times >= start) & (times <= end))
    # Gaps that overlap the window. After a GPU's last reading, next_s is NaN and there is no gap.
    gaps = np.flatnonzero((end > times) & (start < times + readings.next_s))
    counts = np.zeros(gpus.size, dtype=np.int64)
    seen, at = _runs(readings.sensors[inside])
    places = np.searchsorted(gpus, seen)
    counts[places] = np.diff(at, append=inside.size)
    torn, gaps_at = _runs(readings.sensors[gaps])
    longest: list[float | None] = [None] * gpus.size
    if gaps.size:
        for place, gap in zip(
            np.searchsorted(gpus, torn).tolist(),
            np.maximum.reduceat(readings.next_s[gaps], gaps_at).tolist(),
            strict=True,
        ):
            longest[place] = gap
    shared = [
        {"readings": count, "first_unix_s": first, "last_unix_s": last, "longest_gap_s": gap}
        for count, first, last, gap in zip(
            counts.tolist(),
            times[firsts].tolist(),
            times[readings.lasts].tolist(),
            longest,
            strict=True,
        )
    ]
    names = list(readings.values)
    begins, ends = (
        readings.until(gpus, np.full(gpus.size, moment), names) for moment in (start, end)
    )
    looks: dict[str, dict[int, dict[str, Any]]] = {}
    for name, until_start, until_end in zip(names, begins, ends, strict=True):
        figures: list[list[Any]] = [_or_none(until_end - until_start), [], []]
        value = readings.values[name][inside]
        for figure, extreme in ((1, np.maximum), (2, np.minimum)):
            extremes = np.full(gpus.size, np.nan)
            if inside.size:
                extremes[places] = extreme.reduceat(value, at)
            figures[figure] = _or_none(extremes)
        looks[name] = {
            gpu: {**of_gpu, "integral": integral, "peak": peak, "lowest": lowest}
            for gpu, of_gpu, integral, peak, lowest in zip(
                gpus.tolist(), shared, *figures, strict=True
            )
        }
    return looks


def _runs(sensors: Numbers) -> tuple[Numbers, Numbers]:
    """The GPUs of rows that are sorted by GPU, and the index of each GPU's first row."""
    at = np.flatnonzero(np.diff(sensors, prepend=-1))
    return sensors[at], at


def _or_none(values: Floats) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]  # NaN alone differs


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
    spans = _power(readings).edges("power_w")
    # The driver also gives samples from before the first reading, perhaps of another job.
    sensors = driver["sensor"].to_numpy()
    begins = np.full(1 + max([0, *spans, *sensors[-1:].tolist()]), np.inf)
    for sensor, (span, _, _) in spans.items():
        begins[sensor] = span.start_unix_s
    later = driver["unix_time_s"].to_numpy() >= begins[sensors]
    driver = driver.select("sensor", "unix_time_s", power_w=pl.col("power_mw") / 1000).filter(later)
    whole = _agreeing(readings, driver)
    sources = {sensor: "driver" if sensor in whole else "readings" for sensor in spans}
    if len(whole) < len(sources):
        of_driver = pl.col("sensor").is_in(sorted(whole))
        parts = [readings.filter(~of_driver), driver.filter(of_driver)]
        return pl.concat(parts).sort("sensor", maintain_order=True), sources
    return driver, sources


def _power(rows: pl.DataFrame) -> Integrals:
    return Integrals(rows, {"power_w": pl.col("power_w")})


def _agreeing(readings: pl.DataFrame, driver: pl.DataFrame) -> set[int]:
    """The sensors whose samples by the driver have no hole, and whose mean power is the same by
    both sources, over the time that both cover."""
    of_readings, of_driver = _power(readings), _power(driver)
    spans, sampled = of_readings.edges("power_w"), of_driver.edges("power_w")
    torn = {sensor for sensor, _, _ in of_driver.holes("power_w", _LONGEST_HOLE_S)}
    power_w = pl.col("power_w")
    range_w = dict(readings.group_by("sensor").agg(power_w.max() - power_w.min()).iter_rows())
    agreeing = set()
    for sensor in sampled.keys() - torn:
        (read, _, _), (samples, _, _) = spans[sensor], sampled[sensor]
        begin = max(read.start_unix_s, samples.start_unix_s)
        end = min(read.end_unix_s, samples.end_unix_s)
        late_s, early_s = begin - read.start_unix_s, read.end_unix_s - end
        if end <= begin or max(late_s, early_s) > _LONGEST_HOLE_S:
            continue
        span = np.array([sensor]), np.array([begin]), np.array([end])
        mean_w, driver_w = (
            of.over("power_w", *span).item() / (end - begin) for of in (of_readings, of_driver)
        )
        lag_w = _LAG_S * range_w[sensor] / (end - begin)
        if abs(driver_w - mean_w) <= _LARGEST_DIFFERENCE * mean_w + lag_w:
            agreeing.add(sensor)
    return agreeing
