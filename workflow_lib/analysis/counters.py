"""What cumulative counters say of the measured steps: energy, shares of throttling, errors.

Counters are read seconds apart (:mod:`workflow_lib.telemetry.validity.counter_span`), so readings
seldom fall on the edges of a window. The growth within the window is either taken from the readings
that span it best, or completed at its edges by power readings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from workflow_lib.analysis.integrals import Integrals
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.recordings import Recording, Recordings
from workflow_lib.telemetry.validity.counter_span import CounterSpan, Reading

#: The trapezoid rule completes the counter's energy at the edges over at most this share of the
#: window. With more, the counter would no longer be an independent check of the trapezoid rule.
_LARGEST_COMPLETED_SHARE = 0.5
#: the readings of a counter inside the window must span at least this share of it
_LEAST_SHARE_INSIDE = 0.3
#: In its first and last rows the sampler reads power, then slow readings, and then the counters. So
#: power is taken to stay constant before its first and after its last reading, at most this long.
_POWER_HELD_S = 1.0


@dataclass(frozen=True)
class CountedEnergy:
    """The energy of a window by an energy counter, in J; a null value has its reason beside it.

    ``compared`` holds the counter's and the trapezoid rule's energy over the same span.
    """

    energy_j: float | None
    energy_reason: str
    compared: tuple[float, float] | None
    compared_reason: str


#: for a GPU whose counter is not asked for
NOT_COUNTED = CountedEnergy(None, "not asked for", None, "not asked for")


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


def counted_energies(
    recordings: Recordings, spans: Mapping[int, CounterSpan], window: Window
) -> dict[int, CountedEnergy]:
    """The energy of each GPU over a window by its counter C, completed at the edges by power P.

    The counter's readings at a and b are those nearest to the window's start s and end e, on either
    side of them::

        E = C(b) − C(a) + ∫ P dt from s to a + ∫ P dt from b to e

    An integral is negative if its end comes before its start. For ``compared``, the growth of C is
    set beside the integral of P between the two readings of the counter that
    :meth:`CounterSpan.ends` chooses, so that only power is interpolated, between its own readings.
    ``spans`` are of ``energy_j``, by sensor. Returns sensor → energy.
    """
    pairs: dict[int, dict[str, tuple[Reading, Reading] | None]] = {
        sensor: {"nearest": span.nearest(), "ends": span.ends()} for sensor, span in spans.items()
    }
    wanted: set[tuple[int, float]] = set()
    sensors = recordings.sensors()
    for sensor in sensors:
        wanted |= {(sensor, window.start_unix_s), (sensor, window.end_unix_s)}
        for pair in pairs.get(sensor, {}).values():
            wanted |= {(sensor, reading.unix_time_s) for reading in pair or ()}
    until = _power_integrals(recordings.power_over_time, sorted(wanted))
    return {
        sensor: _counted(
            recordings.nodes[recordings.place(sensor)[0]],
            sensor,
            window,
            spans.get(sensor),
            pairs.get(sensor, {}),
            until,
        )
        for sensor in sensors
    }


def _counted(
    recording: Recording,
    sensor: int,
    window: Window,
    span: CounterSpan | None,
    pairs: Mapping[str, tuple[Reading, Reading] | None],
    until: Mapping[tuple[int, float], float | None],
) -> CountedEnergy:
    if span is None:
        reason = recording.why_absent("energy_j")
        return CountedEnergy(None, reason, None, reason)
    if span.fell:
        reason = "the counter energy_j ran backwards"
        return CountedEnergy(None, reason, None, reason)

    def power_j(from_unix_s: float, to_unix_s: float) -> float | None:
        if from_unix_s == to_unix_s:
            return 0.0
        begin, end = until[sensor, from_unix_s], until[sensor, to_unix_s]
        return None if begin is None or end is None else end - begin

    no_power = "power was not read at the counter's readings"
    energy_j, reason = None, ""
    nearest = pairs["nearest"]
    if nearest is None:
        reason = "energy_j was read only on one side of the measured steps"
    elif (off_s := _off_s(nearest, window)) > _LARGEST_COMPLETED_SHARE * window.duration_s:
        reason = (
            "the readings of energy_j nearest to the edges of the measured steps are "
            f"{off_s:.3g} s off them in all, more than half of their duration"
        )
    else:
        a, b = nearest
        edges = (
            power_j(window.start_unix_s, a.unix_time_s),
            power_j(b.unix_time_s, window.end_unix_s),
        )
        if edges[0] is None or edges[1] is None:
            reason = no_power
        else:
            energy_j = b.value - a.value + edges[0] + edges[1]
    compared, compared_reason = None, ""
    ends = pairs["ends"]
    if ends is None:
        compared_reason = "the readings of energy_j neither cover nor bracket the measured steps"
    else:
        trapezoid_j = power_j(ends[0].unix_time_s, ends[1].unix_time_s)
        if trapezoid_j is None:
            compared_reason = no_power
        elif trapezoid_j <= 0:
            compared_reason = f"the trapezoid rule gives {trapezoid_j} J, which cannot be compared"
        else:
            compared = ends[1].value - ends[0].value, trapezoid_j
    return CountedEnergy(energy_j, reason, compared, compared_reason)


def _off_s(readings: tuple[Reading, Reading], window: Window) -> float:
    """The distances of two readings from a window's start and end, added up, in s."""
    return abs(readings[0].unix_time_s - window.start_unix_s) + abs(
        readings[1].unix_time_s - window.end_unix_s
    )


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
