"""Shares of time in which a GPU was held back: by its power cap, by heat, by a power brake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workflow_lib.analysis.counters import rate_within
from workflow_lib.telemetry.validity.counter_span import CounterSpan

COUNTERS = (
    "throttle_power_cap_s",
    "throttle_sw_thermal_s",
    "throttle_hw_thermal_s",
    "throttle_power_brake_s",
)


@dataclass(frozen=True)
class Shares:
    """Shares of time; each null where it is not known."""

    power: float | None
    thermal: float | None
    brake: float | None


UNKNOWN = Shares(None, None, None)


def from_counters(spans: Mapping[str, CounterSpan | None]) -> Shares | None:
    """Exact shares from the driver's cumulative times, or None unless all of them tell.

    Time in software and in hardware thermal slowdown is added up, so that time in both counts
    twice. Counters advance in steps of about 0.1 s, so that a share may seem to exceed 1 by that
    much; it is cut there.
    """
    shares = [rate_within(spans[counter]) for counter in COUNTERS]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    cap, software, hardware, brake = known
    return Shares(min(cap, 1.0), min(software + hardware, 1.0), min(brake, 1.0))
