"""Judges each pair of cells: the rows of COMPARISON.

A verdict states a difference if the interval excludes "no difference"
(:mod:`workflow_lib.intervals`), and the effects of dates and nodes
(:mod:`~workflow_lib.comparison.host_effects`) and the errors of sensors could not explain it. Each
verdict says what it assumes.

Energies and powers of a GPU have errors that repeats do not show, because the sensor is the same in
all of them (:mod:`~workflow_lib.comparison.sensors`). The interval is widened to the least and the
greatest ratio that any such errors leave. Within hosts the effect of a session takes up what the
errors of its GPUs add to both sides, so the widest of the sessions counts. Temperatures are whole
degrees, so each side may be off by half a degree.

A load in step with the looks of a sensor makes an energy wrong in each repeat alike, even on one
GPU: ``energy_error_share`` says how much, and widens the interval on each side.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow_lib.comparison import sensors, sentences
from workflow_lib.comparison.host_effects import allowance, effects, waits_for_host
from workflow_lib.comparison.matching import Pair
from workflow_lib.comparison.measures import (
    COMPARED,
    contrast,
    is_of_energy,
    is_ratio,
    is_temperature,
    reading_error_c,
    values,
)
from workflow_lib.comparison.sensors import Read
from workflow_lib.comparison.sentences import Wide
from workflow_lib.comparison.sides import PEAK, Side
from workflow_lib.intervals import contrasts
from workflow_lib.intervals.contrasts import Contrast, Design, design
from workflow_lib.intervals.differences import COVERAGE, FEWEST_RUNS
from workflow_lib.records import cell_axes
from workflow_lib.records.measures import Measure
from workflow_lib.records.reasons import Reason, missing
from workflow_lib.records.verdict_tables import COMPARISON
from workflow_lib.report.figures.cell_names import Row, completed, completed_runs

#: columns that each side has of its cell
_OF_A_SIDE = ("cell", "platform", "emulated", "gpus", "outcome")
_NUMBERS = tuple(column.name for column in COMPARISON if column.type is float)
#: verdicts that state a difference
TOLD_APART = frozenset(("a_more", "b_more"))
#: verdicts with an interval that includes all effects
WITH_INTERVAL = TOLD_APART | {"not_told_apart"}


def rows(
    pairs: Iterable[Pair], a: Side, b: Side, coverage: float = COVERAGE
) -> list[dict[str, Any]]:
    """A row of COMPARISON for each pair and measure, in the order of the pairs."""
    compared = []
    for pair in pairs:
        if pair.a is None or pair.b is None:
            compared.append(_row(pair, a, b, *_alone(pair, a, b)))
        elif not (completed(pair.a) and completed(pair.b)):
            verdict = _verdict_of_fates(pair.a, pair.b)
            words = sentences.fate(pair.a, pair.b, a.name, b.name)
            compared.append(_row(pair, a, b, verdict, words))
        else:
            measures = [pair.measure] if pair.measure else COMPARED
            limits = sentences.power_limits(
                a.name, a.limits_of(pair.a), b.name, b.limits_of(pair.b)
            )
            of_memory = [
                sentences.allocators(pair.a, pair.b, a.name, b.name),
                *(
                    sentences.memory_pressure(side.name, completed_runs(side.runs_of(cell)))
                    for side, cell in ((a, pair.a), (b, pair.b))
                ),
            ]
            notes = {"power_limits": limits, "memory": "; ".join(filter(None, of_memory))}
            compared += [
                _row(
                    pair,
                    a,
                    b,
                    **_named(_compared(measure, pair.a, pair.b, a, b, coverage), notes),
                )
                for measure in measures
                if measure.applies(pair.a["workload"])
            ]
    return compared


def _named(compared: dict[str, Any], notes: Mapping[str, str]) -> dict[str, Any]:
    """A comparison, with notes added on what medians show and what else differs, by their columns;
    "" if nothing does."""
    known = {"medians": compared.get("medians"), **notes}
    added = {name: note for name, note in known.items() if note}
    return {**compared, **added, "in_words": "; ".join([compared["in_words"], *added.values()])}


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
    why = Reason("as_the_verdict", why=reason or in_words)
    reasons = {name: why for name in _NUMBERS if known.get(name) is None}
    reasons |= known.pop("reasons", {})
    return {**row, **known, **missing(reasons)}


def _compared(
    measure: Measure, cell_a: Row, cell_b: Row, a: Side, b: Side, coverage: float
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
    lie = design(runs_a, runs_b, a.gpus_of_runs(runs_a), b.gpus_of_runs(runs_b))
    known |= {"design": lie.name, "assumes": sentences.assumption(lie)}
    observed = (contrasts.ratio if as_ratio else contrasts.difference)(of_a, of_b, lie, coverage)
    known |= observed._asdict()
    known |= effects(of_a, of_b, (runs_a, runs_b), lie, as_ratio)
    wide, known["reasons"] = _widened(measure, observed, lie, (a, runs_a), (b, runs_b))
    wide, why = _with_energy_errors(measure, wide, runs_a, runs_b)
    known["reasons"] |= why | _not_estimated(known)
    if wide is not None:
        known["date_allowance"] = wide.date
        known |= {"wide_low": wide.low, "wide_high": wide.high}
        known |= {"energy_error_a": wide.energy[0], "energy_error_b": wide.energy[1]}
        if wide.sensors is not None:
            known |= {"sensors_low": wide.sensors[0], "sensors_high": wide.sensors[1]}
    if words := _same_runs(runs_a, runs_b):
        return {**known, "verdict": "same_runs", "in_words": words}
    verdict, words = _verdict(measure, observed, wide, lie, a.name, (len(runs_a), len(runs_b)))
    if wide is not None and verdict != "no_verdict":
        middle = known["value_a"], known["value_b"]
        known["medians"] = sentences.by_medians(measure, *middle, wide, lie) or None
    return {**known, "verdict": verdict, "in_words": words}


def _same_runs(runs_a: Sequence[Row], runs_b: Sequence[Row]) -> str:
    """In words, which runs are on both sides; "" if none is. Sweeps share the runs of a cell that
    both ask for, and an interval takes each run for a measurement of its own."""
    began_b = {(run["cell"], run["run"], run["started_unix_s"]) for run in runs_b}
    both = [run for run in runs_a if (run["cell"], run["run"], run["started_unix_s"]) in began_b]
    if len(both) == len(runs_a) == len(runs_b):
        return "both sides show the same runs"
    which = ", ".join(str(run["run"]) for run in both)
    return f"no verdict: both sides have the same run {which} of one cell" if both else ""


def _not_estimated(known: Mapping[str, Any]) -> dict[str, Reason]:
    """Why two sides that have values have no interval, or no effect of order or date."""
    few = Reason("too_few_runs", fewest=FEWEST_RUNS)
    if known["coverage"] is None:
        names = ("coverage", "drift_per_run", "drift_per_run_low", "drift_per_run_high")
        return dict.fromkeys((*names, "date_effect"), few)
    return {"date_effect": Reason("no_two_dates")}


def _verdict(
    measure: Measure,
    observed: Contrast,
    wide: Wide | None,
    lie: Design,
    name: str,
    counts: tuple[int, int],
) -> tuple[str, str]:
    if observed.coverage is None:
        return "no_verdict", sentences.no_verdict(measure, observed, *counts)
    if wide is None:
        if allowance(measure, lie) is None:
            return "no_verdict", sentences.unknown_dates(measure, observed, lie)
        return "no_verdict", sentences.unknown_power(measure, observed)
    neutral = 1.0 if is_ratio(measure) else 0.0
    if wide.low <= neutral <= wide.high:
        return "not_told_apart", sentences.no_difference_in_words(measure, observed, wide, lie)
    more = wide.low > neutral
    return "a_more" if more else "b_more", sentences.difference_in_words(
        measure, name, more, observed, wide, lie
    )


def _refusal(measure: Measure, runs_a: Sequence[Row], runs_b: Sequence[Row]) -> str:
    """Why the measure must not be compared; "" if it may."""
    simulated = [{bool(run["simulated"]) for run in runs} for runs in (runs_a, runs_b)]
    if measure.sensor and simulated[0] | simulated[1] == {True, False}:
        return "simulated readings cannot be compared with real ones"
    if measure.name == PEAK:
        peaks = {run["power_peak_sensor"] for run in (*runs_a, *runs_b)}
        if peaks == {None}:
            return "the sensors that gave the peaks were not recorded"
        if len(peaks) > 1:
            names = " and ".join(sorted(str(peak or "an unknown sensor") for peak in peaks))
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


#: columns that are null where an effect is unknown
_WIDENED = ("sensors_low", "sensors_high", "wide_low", "wide_high", "date_allowance")


def _widened(
    measure: Measure,
    observed: Contrast,
    lie: Design,
    of_a: tuple[Side, Sequence[Row]],
    of_b: tuple[Side, Sequence[Row]],
) -> tuple[Wide | None, dict[str, Reason]]:
    """The interval widened by the effects of dates and nodes and the errors of sensors, None if one
    of these is unknown; and the reasons of null numbers. Both sides come with their runs."""
    waits = waits_for_host((*of_a[1], *of_b[1]))
    date = allowance(measure, lie, waits, observed.coverage or COVERAGE)
    if date is None:
        why = Reason("date_effect_unknown", why=lie.one_sided_because)
        return None, dict.fromkeys(_WIDENED, why)
    if is_ratio(measure):
        low, high = observed.low / (1 + date), observed.high * (1 + date)
    else:
        low, high = observed.low - date, observed.high + date
    plain = Wide(low, high, date)
    if all(run["simulated"] for run in (*of_a[1], *of_b[1])):
        return plain, _no_error(Reason("simulated_sensor_error"))
    if is_temperature(measure):
        error = 2 * reading_error_c(measure)
        return Wide(low - error, high + error, date, (-error, error)), {}
    if not measure.gain:
        return plain, _no_error(Reason("not_of_power"))
    factors = _of_sensors(measure, lie, of_a, of_b)
    if factors is None:
        return None, dict.fromkeys(
            _WIDENED, Reason("power_error_unknown", why=sentences.UNKNOWN_POWER)
        )
    # A gain that raises an energy lowers an efficiency.
    least, most = factors if measure.gain > 0 else (1 / factors[1], 1 / factors[0])
    return Wide(low * least, high * most, date, (least, most)), {}


def _of_sensors(
    measure: Measure,
    lie: Design,
    of_a: tuple[Side, Sequence[Row]],
    of_b: tuple[Side, Sequence[Row]],
) -> tuple[float, float] | None:
    """By which factors the errors of sensors of power may change a ratio of energies; None if they
    may be all that the sensors read, or if the power of a run is not known."""
    (a, runs_a), (b, runs_b) = of_a, of_b
    reads_a, reads_b = a.reads(measure, runs_a, "a"), b.reads(measure, runs_b, "b")
    if reads_a is None or reads_b is None:
        return None
    judge = sensors.of_peaks if measure.name == PEAK else sensors.of_energies
    sessions = [(reads_a, reads_b)]
    if (lie_in := lie.sessions) is not None:
        sessions = [
            (_of_session(number, reads_a, lie_in.of_a), _of_session(number, reads_b, lie_in.of_b))
            for number in range(lie_in.count)
        ]
    of_sessions = [sensors.over_sets(judge, *session, a.errors) for session in sessions]
    known = [factors for factors in of_sessions if factors is not None]
    if len(known) < len(of_sessions):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _of_session(number: int, reads: Sequence[Read], of: Sequence[int | None]) -> list[Read]:
    return [read for read, session in zip(reads, of, strict=True) if session == number]


def _with_energy_errors(
    measure: Measure, wide: Wide | None, runs_a: Sequence[Row], runs_b: Sequence[Row]
) -> tuple[Wide | None, dict[str, Reason]]:
    """The interval of a ratio of energies, widened by the largest ``energy_error_share`` of each
    side's runs; None if one is unknown. And the reasons of null numbers."""
    names = ("energy_error_a", "energy_error_b")
    if wide is None or not is_of_energy(measure):
        return wide, dict.fromkeys(names, Reason("not_of_energy"))
    if all(run["simulated"] for run in (*runs_a, *runs_b)):
        return wide, dict.fromkeys(names, Reason("simulated_sensor_error"))
    shares = [[run["energy_error_share"] for run in runs] for runs in (runs_a, runs_b)]
    if None in shares[0] + shares[1]:
        why = Reason("no_energy_counter")
        return None, dict.fromkeys((*names, "wide_low", "wide_high", "date_allowance"), why)
    s, t = max(shares[0]), max(shares[1])
    low, high = widened(wide.low, wide.high, *((s, t) if measure.gain > 0 else (t, s)))
    return wide._replace(low=low, high=high, energy=(s, t)), {}


def widened(low: float, high: float, over: float, under: float) -> tuple[float, float]:
    """The ends of a ratio whose numerator may be off by the share ``over`` and its denominator by
    ``under``."""
    return low * (1 - under) / (1 + over), high * (1 + under) / (1 - over)


def _no_error(why: Reason) -> dict[str, Reason]:
    return dict.fromkeys(("sensors_low", "sensors_high"), why)
