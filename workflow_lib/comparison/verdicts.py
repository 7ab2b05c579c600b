"""Judges each pair of cells: the rows of COMPARISON.

A verdict states a difference if the interval excludes "no difference"
(:mod:`workflow_lib.intervals`), and the effects of dates and nodes
(:mod:`~workflow_lib.comparison.allowance`) and the errors of sensors could not explain it. Each
verdict says what it assumes.

Energies and powers of a GPU have a gain error that repeats do not show, because the sensor is the
same in all of them; ``energy_systematic_share`` bounds it. With shares s and t of A's and B's
sensors, the ratio of two energies lies in [low·(1 − t)/(1 + s), high·(1 + t)/(1 − s)]. That is the
worst case: all GPUs of a side are off in one direction, as those of one batch may be. The gain
cancels if one GPU did the runs of both sides, or if one layout ran on the same GPUs on both sides,
for example at two dates. Each GPU then has the same share of both energies. Within hosts this holds
for each session, whose effect takes the gain up. The verdict then assumes that a sensor has the
same gain at all powers. Temperatures are whole degrees, so each side may be off by half a degree.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow_lib.comparison import sentences
from workflow_lib.comparison.allowance import allowance, waits_for_host
from workflow_lib.comparison.effects import effects
from workflow_lib.comparison.matching import SAME_LAYOUT, Pair
from workflow_lib.comparison.measures import (
    COMPARED,
    contrast,
    is_ratio,
    is_temperature,
    reading_error_c,
    values,
)
from workflow_lib.comparison.sentences import Wide
from workflow_lib.comparison.sides import Side
from workflow_lib.intervals import contrasts
from workflow_lib.intervals.contrasts import Contrast
from workflow_lib.intervals.design import Design, design
from workflow_lib.intervals.differences import COVERAGE, FEWEST_RUNS
from workflow_lib.records import COMPARISON, Measure, cell_axes
from workflow_lib.report.cells import Row, completed, completed_runs

#: columns that each side has of its cell
_OF_A_SIDE = ("cell", "platform", "emulated", "gpus", "outcome")
_NUMBERS = tuple(column.name for column in COMPARISON if column.type is float)
#: verdicts that state a difference
TOLD_APART = frozenset(("a_more", "b_more"))


def rows(
    pairs: Iterable[Pair], a: Side, b: Side, coverage: float = COVERAGE
) -> list[dict[str, Any]]:
    """A row of COMPARISON for each pair and measure, in the order of the pairs."""
    found = []
    for pair in pairs:
        if pair.a is None or pair.b is None:
            found.append(_row(pair, a, b, *_alone(pair, a, b)))
        elif not (completed(pair.a) and completed(pair.b)):
            verdict = _verdict_of_fates(pair.a, pair.b)
            words = sentences.fate(pair.a, pair.b, a.name, b.name)
            found.append(_row(pair, a, b, verdict, words))
        else:
            measures = [pair.measure] if pair.measure else COMPARED
            limits = sentences.power_limits(
                a.name, a.limits_of(pair.a), b.name, b.limits_of(pair.b)
            )
            gain_cancels = _gain_cancels(pair, pair.a, pair.b, a, b)
            found += [
                _row(
                    pair,
                    a,
                    b,
                    **_named(_compared(each, pair.a, pair.b, a, b, gain_cancels, coverage), limits),
                )
                for each in measures
                if each.applies(pair.a["workload"])
            ]
    return found


def _gain_cancels(pair: Pair, cell_a: Row, cell_b: Row, a: Side, b: Side) -> bool:
    """Whether the gain of sensors cancels, because each GPU has the same share of both sides'
    energies."""
    runs = completed_runs(a.runs_of(cell_a)), completed_runs(b.runs_of(cell_b))
    of_a, of_b = (Counter(side.gpus_of_runs(of)) for side, of in zip((a, b), runs, strict=True))
    on_one_gpu = all(len(each) == 1 for each in (*of_a, *of_b))
    if all(runs) and _design(*runs, a, b).sessions is not None:
        return pair.match == SAME_LAYOUT or on_one_gpu
    gpus = a.gpus_of(cell_a)
    if pair.match == SAME_LAYOUT and gpus:
        return gpus == b.gpus_of(cell_b)
    # Runs on one GPU each, in any layout: each GPU did as many runs of A as of B.
    return of_a == of_b and on_one_gpu


def _design(runs_a: Sequence[Row], runs_b: Sequence[Row], a: Side, b: Side) -> Design:
    return design(runs_a, runs_b, a.gpus_of_runs(runs_a), b.gpus_of_runs(runs_b))


def _named(compared: dict[str, Any], limits: str) -> dict[str, Any]:
    """A comparison, with the power limits added if they differ."""
    if not limits:
        return compared
    return {**compared, "power_limits": limits, "in_words": f"{compared['in_words']}; {limits}"}


def _alone(pair: Pair, a: Side, b: Side) -> tuple[str, str]:
    """The verdict and the sentence of a cell without a partner."""
    side, verdict = (b, "no_partner_in_b") if pair.b is None else (a, "no_partner_in_a")
    return verdict, f"no partner in {side.name}: {pair.reason}"


def _verdict_of_fates(a: Row, b: Row) -> str:
    if completed(a):
        return "only_a_completed"
    return "only_b_completed" if completed(b) else "neither_completed"


def _row(
    pair: Pair, a: Side, b: Side, verdict: str, in_words: str, reason: str = "", **known: Any
) -> dict[str, Any]:
    """A row of COMPARISON; ``reason`` is why unknown numbers are null, if it is not
    ``in_words``."""
    one = pair.one
    row: dict[str, Any] = {
        **dict.fromkeys(column.name for column in COMPARISON),
        "match": pair.match,
        "model": one["model"],
        "workload": one["workload"],
        "simulated": any(cell["simulated"] for cell in (pair.a, pair.b) if cell),
        "verdict": verdict,
        "in_words": in_words,
    }
    if pair.a is not None and pair.b is not None:
        row["differs"] = ", ".join(cell_axes.differing([pair.a, pair.b]))
    for end, cell, side in (("a", pair.a, a), ("b", pair.b, b)):
        if cell is not None:
            row |= {f"{name}_{end}": cell[name] for name in _OF_A_SIDE}
            row[f"runs_{end}"] = len(completed_runs(side.runs_of(cell)))
    reasons = {name: reason or in_words for name in _NUMBERS if known.get(name) is None}
    reasons |= known.pop("reasons", {})
    return {**row, **known, "missing_reasons": json.dumps(reasons, sort_keys=True)}


def _compared(
    measure: Measure,
    cell_a: Row,
    cell_b: Row,
    a: Side,
    b: Side,
    gain_cancels: bool,
    coverage: float,
) -> dict[str, Any]:
    """The verdict, the words and the numbers of a measure of two completed cells."""
    runs_a, runs_b = completed_runs(a.runs_of(cell_a)), completed_runs(b.runs_of(cell_b))
    known: dict[str, Any] = {
        "measure": measure.name,
        "unit": measure.unit,
        "contrast": contrast(measure).kind,
    }
    of_a, why_a = values(measure, runs_a)
    of_b, why_b = values(measure, runs_b)
    for end, of_side in (("a", of_a), ("b", of_b)):
        known[f"value_{end}"] = statistics.median(of_side) if of_side else None
    if refusal := _refusal(measure, runs_a, runs_b):
        return {**known, "verdict": "refused", "in_words": f"refused: {refusal}"}
    missing = _missing(measure, (a.name, of_a, why_a), (b.name, of_b, why_b))
    if missing:
        return {**known, "verdict": "missing", "in_words": f"no value: {missing}"}
    as_ratio = is_ratio(measure)
    lie = _design(runs_a, runs_b, a, b)
    known |= {"design": lie.name, "assumes": sentences.assumption(lie)}
    found = (contrasts.ratio if as_ratio else contrasts.difference)(of_a, of_b, lie, coverage)
    known |= found._asdict()
    known |= effects(of_a, of_b, (runs_a, runs_b), lie, as_ratio)
    wide, known["reasons"] = _widened(measure, found, lie, runs_a, runs_b, gain_cancels)
    known["reasons"] |= _untold(known)
    if wide is not None:
        known["date_allowance"] = wide.date
        known |= {"wide_low": wide.low, "wide_high": wide.high}
        known |= {"systematic_a": wide.error_a, "systematic_b": wide.error_b}
    if words := _same_runs(runs_a, runs_b):
        return {**known, "verdict": "same_runs", "in_words": words}
    verdict, words = _verdict(measure, found, wide, lie, a.name, (len(runs_a), len(runs_b)))
    return {**known, "verdict": verdict, "in_words": words}


def _same_runs(runs_a: Sequence[Row], runs_b: Sequence[Row]) -> str:
    """In words, which runs are on both sides; "" if none is. Sweeps share the runs of a cell that
    both ask for, and an interval takes each run for a measurement of its own.
    """
    began_b = {(run["cell"], run["run"], run["started_unix_s"]) for run in runs_b}
    both = [run for run in runs_a if (run["cell"], run["run"], run["started_unix_s"]) in began_b]
    if len(both) == len(runs_a) == len(runs_b):
        return "both sides show the same runs"
    which = ", ".join(str(run["run"]) for run in both)
    return f"no verdict: both sides have the same run {which} of one cell" if both else ""


def _untold(known: Mapping[str, Any]) -> dict[str, str]:
    """Why two sides that have values have no interval, or no effect of order or date."""
    few = f"a side has fewer than {FEWEST_RUNS} runs"
    if known["coverage"] is None:
        names = ("coverage", "drift_per_run", "drift_per_run_low", "drift_per_run_high")
        return dict.fromkeys((*names, "date_effect"), few)
    return {"date_effect": "there are no two dates on which both sides ran"}


def _verdict(
    measure: Measure,
    found: Contrast,
    wide: Wide | None,
    lie: Design,
    name: str,
    counts: tuple[int, int],
) -> tuple[str, str]:
    if found.coverage is None:
        return "no_verdict", sentences.no_verdict(measure, found, *counts)
    if wide is None:
        if allowance(measure, lie) is None:
            return "no_verdict", sentences.unknown_dates(measure, found, lie)
        return "no_verdict", sentences.unknown_error(measure, found)
    neutral = 1.0 if is_ratio(measure) else 0.0
    if wide.low <= neutral <= wide.high:
        return "not_told_apart", sentences.not_told(measure, found, wide, lie)
    more = wide.low > neutral
    return "a_more" if more else "b_more", sentences.told(measure, name, more, found, wide, lie)


def _refusal(measure: Measure, runs_a: Sequence[Row], runs_b: Sequence[Row]) -> str:
    """Why the measure must not be compared; "" if it may."""
    simulated = [{bool(run["simulated"]) for run in runs} for runs in (runs_a, runs_b)]
    if measure.sensor and simulated[0] | simulated[1] == {True, False}:
        return "simulated readings cannot be compared with real ones"
    if measure.name == "power_peak_w":
        peaks = {run["power_peak_sensor"] for run in (*runs_a, *runs_b)}
        if peaks == {None}:
            return "the sensors that gave the peaks were not recorded"
        if len(peaks) > 1:
            names = " and ".join(sorted(str(each or "an unknown sensor") for each in peaks))
            return f"the peaks come from {names}, and so cannot be compared"
    if is_temperature(measure):
        makers = [{run["sensors"] for run in runs} for runs in (runs_a, runs_b)]
        if makers[0] != makers[1]:
            names = " and ".join(", ".join(sorted(of_side)) for of_side in makers)
            return f"the sensors of {names} measure the temperature at different places"
    return ""


def _missing(measure: Measure, *sides: tuple[str, Sequence[float], str]) -> str:
    """Why two sides cannot be contrasted; "" if they can."""
    reasons = []
    for name, of_side, why in sides:
        if not of_side:
            reasons.append(f"{name}, {why}")
        elif is_ratio(measure) and min(of_side) <= 0:
            reasons.append(f"{name} has {min(of_side):g}, so there is no ratio")
    return "; ".join(reasons)


def _widened(
    measure: Measure,
    found: Contrast,
    lie: Design,
    runs_a: Sequence[Row],
    runs_b: Sequence[Row],
    gain_cancels: bool,
) -> tuple[Wide | None, dict[str, str]]:
    """The interval widened by the effects of dates and nodes and the errors of sensors, None if one
    of these is unknown; and the reasons of null numbers."""
    waits = waits_for_host((*runs_a, *runs_b))
    date = allowance(measure, lie, waits, found.coverage or COVERAGE)
    if date is None:
        why = f"the effect of a date or a node is unknown, and {lie.one_sided_because}"
        names = ("systematic_a", "systematic_b", "wide_low", "wide_high", "date_allowance")
        return None, dict.fromkeys(names, why)
    if is_ratio(measure):
        low, high = found.low / (1 + date), found.high * (1 + date)
    else:
        low, high = found.low - date, found.high + date
    plain = Wide(low, high, date)
    if all(run["simulated"] for run in (*runs_a, *runs_b)):
        return plain, _no_error("simulated readings have no sensor error")
    if is_temperature(measure):
        error = reading_error_c(measure)
        return Wide(low - 2 * error, high + 2 * error, date, error, error), {}
    if not measure.gain:
        return plain, _no_error("the measure does not use a power sensor")
    if gain_cancels:
        why = "the same GPUs ran both sides, so the gain of each sensor cancels"
        return plain._replace(gain_cancels=True), _no_error(why)
    shares = [[run["energy_systematic_share"] for run in runs] for runs in (runs_a, runs_b)]
    if None in shares[0] + shares[1]:
        why = "the systematic error of these sensors is unknown"
        names = ("systematic_a", "systematic_b", "wide_low", "wide_high", "date_allowance")
        return None, dict.fromkeys(names, why)
    s, t = max(shares[0]), max(shares[1])
    # A gain that raises an energy lowers an efficiency.
    over, under = (s, t) if measure.gain > 0 else (t, s)
    return Wide(low * (1 - under) / (1 + over), high * (1 + under) / (1 - over), date, s, t), {}


def _no_error(why: str) -> dict[str, str]:
    return dict.fromkeys(("systematic_a", "systematic_b"), why)


def told(row: Mapping[str, Any]) -> bool:
    """Whether a row of COMPARISON tells both sides apart."""
    return row["verdict"] in TOLD_APART
