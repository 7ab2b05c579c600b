"""What cumulative counters say of the measured steps: energy, shares of throttling, errors.

Counters are read seconds apart (:mod:`workflow_lib.telemetry.validity.counter_span`), so readings
seldom fall on the edges of a window. The growth within the window is taken from the readings that
span it best. That of energy is spread over time as power is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from workflow_lib import gpu_models, power_errors
from workflow_lib.analysis.integrals import Integrals
from workflow_lib.analysis.known import Why
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.recordings import Recordings
from workflow_lib.records.reasons import Reason
from workflow_lib.records.telemetry_columns import THROTTLES
from workflow_lib.telemetry.validity.counter_span import CounterSpan, Reading

#: the readings of the energy counter nearest to the edges of the window may be this far off them in
#: all, as a share of the window
_LARGEST_COMPLETED_SHARE = 0.6
#: NVIDIA's driver renews its energy counter about every 0.1 s
_RENEWAL_S = 0.1
#: The times of two readings of the energy counter may be off by this share of what is between them.
#: With more, the counter would tell energy no better than samples of power do.
_LARGEST_TIME_ERROR = 0.006
#: the readings of a counter inside the window must span at least this share of it
_LEAST_SHARE_INSIDE = 0.3
#: In its first and last rows the sampler reads power, then slow readings, and then the counters. So
#: power is taken to stay constant before its first and after its last reading, at most this long.
_POWER_HELD_S = 1.0


def spans_of(
    counters: pl.DataFrame, names: Sequence[str], window: Window
) -> dict[str, dict[int, CounterSpan]]:
    """Counter → sensor → its readings around a window; sensors without a reading are left out."""
    spans: dict[str, dict[int, CounterSpan]] = {name: {} for name in names}
    for sensor, unix_time_s, *values in counters.select(
        "sensor", "unix_time_s", *names
    ).iter_rows():
        for name, value in zip(names, values, strict=True):
            if value is not None:
                if sensor not in spans[name]:
                    spans[name][sensor] = CounterSpan(window.start_unix_s, window.end_unix_s)
                spans[name][sensor].add(unix_time_s, value)
    return spans


def rate_within(span: CounterSpan | None) -> float | None:
    """How fast a counter grew within the window, in its unit per second; None if it is not known.

    It is the growth between the first and the last reading inside the window, if they span 30 % of
    it. They stand for the whole window because steps are alike. Readings outside of the window are
    not used, because they cover start-up and the end as well, when nothing is throttled or sent.
    """
    if span is None or span.fell or span.first is None or span.last is None:
        return None
    elapsed_s = span.last.unix_time_s - span.first.unix_time_s
    least_s = _LEAST_SHARE_INSIDE * (span.end_unix_s - span.start_unix_s)
    if elapsed_s <= 0 or elapsed_s < least_s:
        return None
    return (span.last.value - span.first.value) / elapsed_s


def energy_spans(recordings: Recordings, window: Window) -> dict[int, CounterSpan]:
    """Sensor → the readings of its energy counter around a window.

    The time of a reading is that at which its value was renewed, as far as it is known: half the
    age that the value may have before it was read (GPU_COUNTERS.energy_age_s, which earlier
    versions of the sampler did not record).
    """
    spans: dict[int, CounterSpan] = {}
    rows = recordings.counters.select("sensor", "unix_time_s", "energy_j", "energy_age_s")
    for sensor, unix_time_s, energy_j, age_s in rows.drop_nulls("energy_j").iter_rows():
        if sensor not in spans:
            spans[sensor] = CounterSpan(window.start_unix_s, window.end_unix_s)
        if age_s is None:
            node, _ = recordings.place(sensor)
            is_renewed = recordings.nodes[node].start.source == "nvidia"
            age_s = _RENEWAL_S if is_renewed else 0.0
        spans[sensor].add(unix_time_s - age_s / 2, energy_j, age_s / 2)
    return spans


class Counted(NamedTuple):
    """A GPU's energy by its counter over the integral of its power, or why it is not known."""

    share: float | None
    reason: Why = ""
    #: by how much the energy may be off, because the load is in step with the sensor
    error_share: float = 0.0


def counted_shares(
    recordings: Recordings, window: Window, step_ends_s: Sequence[float] = ()
) -> dict[int, Counted]:
    """The energy of each GPU by its counter, as a share of the integral of its power, over the
    window; or why it is not known.

    All values of power are made of looks of the sensor that are 20 ms apart (H100, H200), so their
    integral is wrong where the load is in step with the looks. The counter C integrates more of the
    time. Its readings at a and b are those nearest to the window's edges, on either side of them::

        share = (C(b) − C(a)) / ∫ P dt from a to b

    The energy of any part of the window is the share times the integral of power over it: power
    only tells how the counter's energy is spread over time, also between a, b and the edges. It may
    be off by what the two differ by, if the times of the counter's readings do not explain that,
    and by what steps in step with the looks make; ``step_ends_s`` are their ends.
    """
    spans = energy_spans(recordings, window)
    sensors = recordings.sensors()
    pairs = {sensor: span.nearest() for sensor, span in spans.items()}
    wanted = {
        (sensor, reading.unix_time_s) for sensor in sensors for reading in pairs.get(sensor) or ()
    }
    until = _power_integrals(recordings.power_over_time, sorted(wanted))
    places = {sensor: recordings.place(sensor) for sensor in sensors}
    entries = {
        sensor: dict(enumerate(recordings.nodes[node].start.gpus)).get(gpu, {})
        for sensor, (node, gpu) in places.items()
    }
    most_w = {sensor: gpu_models.most_power_w(entry) for sensor, entry in entries.items()}

    def counted(sensor: int) -> Counted:
        span, pair = spans.get(sensor), pairs.get(sensor)
        if span is None:
            node, _ = places[sensor]
            return Counted(None, recordings.nodes[node].why_absent("energy_j"))
        if span.fell:
            return Counted(None, Reason("counter_fell", counter="energy_j"))
        if pair is None:
            return Counted(None, Reason("counter_not_around", counter="energy_j"))
        if problem := _too_far(pair, window):
            return Counted(None, problem)
        begin, end = (until[sensor, reading.unix_time_s] for reading in pair)
        if begin is None or end is None:
            return Counted(None, Reason("power_not_at_counter"))
        if end <= begin or pair[1].value <= pair[0].value:
            return Counted(None, Reason("counter_stood_still"))
        if (counted_j := pair[1].value - pair[0].value) > most_w[sensor] * _apart_s(pair):
            return Counted(None, Reason("counter_too_fast"))
        share = counted_j / (end - begin)
        apart = abs(1 / share - 1)
        unexplained = 0.0 if apart <= _times_off_s(pair) / _apart_s(pair) else apart
        return Counted(share, "", max(unexplained, in_step(sensor)))

    within = pl.col("unix_time_s").is_between(window.start_unix_s, window.end_unix_s)
    samples = recordings.power.filter(within if len(step_ends_s) > 1 else pl.lit(value=False))
    rows = samples.select("sensor", "unix_time_s", "power_w").drop_nulls()
    of_sensors = rows.partition_by("sensor", as_dict=True, include_key=False)

    def in_step(sensor: int) -> float:
        node, _ = places[sensor]
        is_sensor = not recordings.nodes[node].start.simulated
        is_read = is_sensor and recordings.power_sources.get(sensor) == "driver"
        if not is_read or (sensor,) not in of_sensors:
            return 0.0
        step_s = (step_ends_s[-1] - step_ends_s[0]) / (len(step_ends_s) - 1)
        return power_errors.in_step_share(of_sensors[sensor,].rows(), step_s, step_ends_s)

    return {sensor: counted(sensor) for sensor in sensors}


def _too_far(pair: tuple[Reading, Reading], window: Window) -> Why:
    """Why two readings of the energy counter cannot stand for the window; "" if they can."""
    late_s = pair[0].unix_time_s - window.start_unix_s
    early_s = pair[1].unix_time_s - window.end_unix_s
    if (off_s := abs(late_s) + abs(early_s)) > _LARGEST_COMPLETED_SHARE * window.duration_s:
        return Reason(
            "counter_off_edges", off_s=off_s, largest_completed_share=_LARGEST_COMPLETED_SHARE
        )
    apart_s, times_off_s = _apart_s(pair), _times_off_s(pair)
    if times_off_s > _LARGEST_TIME_ERROR * apart_s:
        return Reason(
            "counter_times_uncertain",
            apart_s=apart_s,
            times_off_s=times_off_s,
            largest_time_error=_LARGEST_TIME_ERROR,
        )
    return ""


def _apart_s(pair: tuple[Reading, Reading]) -> float:
    return pair[1].unix_time_s - pair[0].unix_time_s


def _times_off_s(pair: tuple[Reading, Reading]) -> float:
    return pair[0].off_s + pair[1].off_s


def _power_integrals(
    power: Integrals, moments: Sequence[tuple[int, float]]
) -> dict[tuple[int, float], float | None]:
    """∫ P dt in J from the GPU's first reading to each (sensor, time), or None if it is not known.

    For up to a second before the first and after the last reading, power is taken to be constant.
    """
    edges = power.edges("power_w")
    known = [moment for moment in moments if moment[0] in edges]
    within = [
        min(max(time, edges[sensor][0].start_unix_s), edges[sensor][0].end_unix_s)
        for sensor, time in known
    ]
    sensors = np.array([sensor for sensor, _ in known], dtype=np.int64)
    integrals = power.until("power_w", sensors, np.array(within, dtype=np.float64)).tolist()
    until: dict[tuple[int, float], float | None] = dict.fromkeys(moments)
    for (sensor, time), clipped, integral in zip(known, within, integrals, strict=True):
        beyond_s = time - clipped
        _, first_w, last_w = edges[sensor]
        if abs(beyond_s) <= _POWER_HELD_S:
            until[sensor, time] = integral + beyond_s * (first_w if beyond_s < 0 else last_w)
    return until


THROTTLE_COUNTERS = tuple(THROTTLES)
#: the step by which NVIDIA's counters advance, as seen on H100 and H200 with driver 580.159
_COUNTER_STEP_S = 0.1


@dataclass(frozen=True)
class ThrottleShares:
    """Shares of time; a share is null if it is not known."""

    power: float | None
    thermal: float | None
    brake: float | None


@dataclass(frozen=True)
class CountedThrottling:
    """Shares from the driver's counters, and over how many seconds these were read."""

    shares: ThrottleShares
    elapsed_s: float

    @property
    def error(self) -> float:
        """The largest error of a share, in either direction: each of the two readings may lack a
        step."""
        return _COUNTER_STEP_S / self.elapsed_s


def counted_throttling(spans: Mapping[str, CounterSpan | None]) -> CountedThrottling | None:
    """Shares from the driver's cumulative times, or None if one of them is not known.

    Times in software and in hardware thermal slowdown are added up, so time in both counts twice. A
    share that exceeds 1 by its error is set to 1.
    """
    shares = [rate_within(spans[counter]) for counter in THROTTLE_COUNTERS]
    known = [share for share in shares if share is not None]
    span = spans[THROTTLE_COUNTERS[0]]
    if len(known) < len(shares) or span is None or span.first is None or span.last is None:
        return None
    cap, software, hardware, brake = known
    return CountedThrottling(
        ThrottleShares(min(cap, 1.0), min(software + hardware, 1.0), min(brake, 1.0)),
        span.last.unix_time_s - span.first.unix_time_s,
    )


def bursts_at_limit(power: pl.DataFrame, window: Window) -> dict[int, int]:
    """How often the power of each sensor rose to its limit within the window. A start at the limit
    counts as well.

    ``power`` has ``sensor``, ``unix_time_s`` and ``at_power_limit``, sensor by sensor in the order
    of time; sensors whose limit is not known are left out.
    """
    inside = power.filter(
        pl.col("unix_time_s").is_between(window.start_unix_s, window.end_unix_s)
        & pl.col("at_power_limit").is_not_null()
    )
    at = pl.col("at_power_limit")
    begins = (at & ~at.shift(1, fill_value=False)).sum()
    counted = inside.group_by("sensor").agg(bursts=begins)
    return dict(counted.select("sensor", "bursts").iter_rows())
