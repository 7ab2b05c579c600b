"""Shares of time in which a GPU was held back: by its power cap, by heat, by a power brake; and
how often power came up to the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from workflow_lib.analysis.counters import rate_within
from workflow_lib.analysis.metrics import Window
from workflow_lib.telemetry.validity.counter_span import CounterSpan

COUNTERS = (
    "throttle_power_cap_s",
    "throttle_sw_thermal_s",
    "throttle_hw_thermal_s",
    "throttle_power_brake_s",
)
#: by how much NVIDIA's counters advance at once: seen on H100 and H200, driver 580.159
_COUNTER_STEP_S = 0.1


@dataclass(frozen=True)
class Shares:
    """Shares of time; each null where it is not known."""

    power: float | None
    thermal: float | None
    brake: float | None


UNKNOWN = Shares(None, None, None)


@dataclass(frozen=True)
class Counted:
    """Shares from the driver's counters, and over how many seconds these were read."""

    shares: Shares
    elapsed_s: float

    @property
    def error(self) -> float:
        """By how much a share may be off, either way: each of the two readings may lack a step."""
        return _COUNTER_STEP_S / self.elapsed_s


def from_counters(spans: Mapping[str, CounterSpan | None]) -> Counted | None:
    """Shares from the driver's cumulative times, or None unless all of them tell.

    Time in software and in hardware thermal slowdown is added up, so that time in both counts
    twice. A share may seem to exceed 1 by its error; it is cut there.
    """
    shares = [rate_within(spans[counter]) for counter in COUNTERS]
    known = [share for share in shares if share is not None]
    span = spans[COUNTERS[0]]
    if len(known) < len(shares) or span is None or span.first is None or span.last is None:
        return None
    cap, software, hardware, brake = known
    return Counted(
        Shares(min(cap, 1.0), min(software + hardware, 1.0), min(brake, 1.0)),
        span.last.unix_time_s - span.first.unix_time_s,
    )


def bursts_at_limit(power: pl.DataFrame, window: Window) -> dict[int, int]:
    """How often the power of each sensor came up to its limit within the window, or was there at
    its start.

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
