"""Shares of time in which a GPU was throttled by its power cap, by heat or by a power brake; and
how often power rose to its limit."""

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
#: the step by which NVIDIA's counters advance, as seen on H100 and H200 with driver 580.159
_COUNTER_STEP_S = 0.1


@dataclass(frozen=True)
class Shares:
    """Shares of time; a share is null if it is not known."""

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
        """The largest error of a share, in either direction: each of the two readings may lack a
        step."""
        return _COUNTER_STEP_S / self.elapsed_s


def from_counters(spans: Mapping[str, CounterSpan | None]) -> Counted | None:
    """Shares from the driver's cumulative times, or None if one of them is not known.

    Times in software and in hardware thermal slowdown are added up, so time in both counts twice. A
    share that exceeds 1 by its error is set to 1.
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
