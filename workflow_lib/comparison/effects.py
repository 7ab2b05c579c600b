"""What order and date did to the difference of two cells."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from workflow_lib.intervals import differences, within_hosts
from workflow_lib.intervals.contrasts import logarithms
from workflow_lib.intervals.design import Design, Run


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
    away; None where there are not two such dates.
    """
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
