"""What hosts, dates and the order of runs did, or may have done, to the difference of two cells.

If runs are apart in time (:mod:`workflow_lib.intervals.contrasts`), an effect on only one of the
sides looks like a difference, so an allowance is made for it: by how much two hosts of one kind
differ at most, in as many cases as the interval is to hold (:mod:`workflow_lib.intervals.hosts`).
An effect of dates was not measured apart, and is assumed to be no greater. Nothing is allowed in
blocks, nor within hosts: both sides then had the same dates and nodes. There is one exception. If
the same side ran first in every session of a host, what is peculiar to first runs acted on this
side only.

Hosts differ far more in cells whose GPUs wait for the host's CPU. For shares of time the effect is
unknown.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from workflow_lib.comparison.measures import is_ratio, is_temperature
from workflow_lib.intervals import differences, hosts, within_hosts
from workflow_lib.intervals.contrasts import Design, Run, logarithms
from workflow_lib.intervals.differences import COVERAGE
from workflow_lib.records.measures import Measure


def effects(
    a: Sequence[float],
    b: Sequence[float],
    runs: tuple[Sequence[Run], Sequence[Run]],
    design: Design,
    as_ratio: bool,
) -> dict[str, Any]:
    """The columns ``drift_per_run…`` and ``date_effect``, those that can be told."""
    if min(len(a), len(b)) < differences.FEWEST_RUNS:
        return {}
    if as_ratio:
        a, b = logarithms(a, b)
    change: Callable[[float], float] = math.expm1 if as_ratio else float
    if design.sessions is None:
        drift = differences.drift(a, b, design.places_a, design.places_b)
    else:
        drift = within_hosts.drift(a, b, design.sessions)
    dates = _date_effect(a, b, *runs)
    return {
        "drift_per_run": change(drift.estimate),
        "drift_per_run_low": change(drift.low),
        "drift_per_run_high": change(drift.high),
        "date_effect": None if dates is None else change(dates),
    }


def _date_effect(
    a: Sequence[float], b: Sequence[float], runs_a: Sequence[Run], runs_b: Sequence[Run]
) -> float | None:
    """How far the dates (of UTC) lie apart on which both sides ran, the sides' own levels taken
    away; None where there are not two such dates."""
    by_date: dict[datetime.date, tuple[list[float], list[float]]] = {}
    for side, (values, runs) in enumerate(((a, runs_a), (b, runs_b))):
        level = statistics.fmean(values)
        for value, run in zip(values, runs, strict=True):
            if run["started_unix_s"] is None:
                return None
            began = datetime.datetime.fromtimestamp(run["started_unix_s"], datetime.UTC)
            by_date.setdefault(began.date(), ([], []))[side].append(value - level)
    means = [
        (statistics.fmean(of_a) + statistics.fmean(of_b)) / 2
        for of_a, of_b in by_date.values()
        if of_a and of_b
    ]
    return max(means) - min(means) if len(means) > 1 else None


#: GPUs that run kernels for a smaller share of the time wait for their host
_BUSY_SHARE = 0.9


def allowance(
    measure: Measure, of: Design, waits: bool = False, coverage: float = COVERAGE
) -> float | None:
    """What hosts and dates may make of a measure where there is no difference: a share of a ratio,
    or an amount; None where that is unknown. Nothing where they act on both sides alike. ``waits``
    says whether GPUs wait for their host."""
    if not of.one_sided_because:
        return 0.0
    if is_ratio(measure):
        return of_ratio(waits, coverage)
    return of_temperature(waits, coverage) if is_temperature(measure) else None


def of_ratio(waits: bool = False, coverage: float = COVERAGE) -> float:
    """The share of a ratio that two hosts of one kind may make."""
    spread = hosts.WAITING_SPREAD if waits else hosts.BUSY_SPREAD
    return round(math.expm1(spread.of_two(coverage)), 3)


def of_temperature(waits: bool = False, coverage: float = COVERAGE) -> float:
    """The difference in °C that two hosts of one kind may make."""
    spread = hosts.WAITING_SPREAD_C if waits else hosts.BUSY_SPREAD_C
    return round(spread.of_two(coverage), 1)


def waits_for_host(runs: Sequence[Run]) -> bool:
    """Whether the GPUs of a run wait for their host: for kernels, or for bytes that its CPU moves
    between emulated nodes. Runs whose use of GPUs is not known count as busy."""
    shares = [run["gpu_utilisation_share"] for run in runs]
    is_idle = any(share is not None and share < _BUSY_SHARE for share in shares)
    return is_idle or any(run["emulated"] for run in runs)
