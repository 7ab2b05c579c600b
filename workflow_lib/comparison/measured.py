"""Two sides of commands that ``triptych measure`` measured, beside each other, as text.

A side is a run's directory, or one that holds several. Only runs that are valid and saw their steps
on one rung are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib.comparison.verdicts import widened
from workflow_lib.intervals.contrasts import Design, Gpus, design, ratio
from workflow_lib.intervals.differences import FEWEST_RUNS
from workflow_lib.records.files import read_measured
from workflow_lib.records.paths import RunPaths, measured_runs
from workflow_lib.records.reading import RecordError
from workflow_lib.words import counted

#: measure → its name and unit
MEASURES = {
    "step_time_s": "s/step",
    "tokens_per_s": "tokens/s",
    "energy_per_token_j": "J/token",
    "energy_per_step_j": "J/step",
    "power_mean_w": "W, all GPUs",
    "energy_j": "J",
    "measured_duration_s": "s",
}


def holds_runs(directory: Path) -> bool:
    """Whether a measured command left its record in a directory, or right below it."""
    return all(RunPaths(path).measured.is_file() for path in measured_runs(directory))


def read_side(directory: Path) -> list[dict[str, Any]]:
    """The records of a side by the times at which its runs began.

    Raises RecordError for a run that did not end or is not valid, and for one on other GPUs than
    the others, which is no repeat.
    """
    runs = []
    for path in measured_runs(directory):
        run = read_measured(path)
        if run["invalid"] or not run["values"]:
            why = "; ".join(map(str, run["invalid"])) or "it did not end; `triptych conclude` it"
            raise RecordError(f"{path} cannot be compared: {why}. Move it elsewhere")
        runs.append(run)
    if len(several := sorted({_gpus_in_words(run) for run in runs})) > 1:
        raise RecordError(
            f"the runs of {directory} are on {' and on '.join(several)}; those of a side are "
            "repeats, on as many GPUs of one model"
        )
    return sorted(runs, key=lambda run: float(run["started_unix_s"]))


def compare(a: Path, b: Path) -> str:
    """The comparison of two sides. Raises OSError, and RecordError as :func:`read_side`, for runs
    of different rungs, simulated runs beside others, and a run that is there twice."""
    sides = (read_side(a), read_side(b))
    for name, what in (("rung", "steps seen on rung"), ("simulated", "simulated")):
        of_sides = [sorted({run[name] for run in side}) for side in sides]
        if len({*of_sides[0], *of_sides[1]}) > 1:
            listed = ", ".join(
                f"{which} {' and '.join(map(str, kinds))}"
                for which, kinds in zip("AB", of_sides, strict=True)
            )
            alike = (
                ": both by the same --steps or --records, and with calls in the code of both or of "
                "neither (1 is by a log, 2 records, 3 the hook, 4 calls)"
                if name == "rung"
                else ""
            )
            raise RecordError(
                f"A, {a}, and B, {b}, are of two kinds ({what}: {listed}), which do not compare; "
                f"measure both sides alike{alike}"
            )
    began = [run["started_unix_s"] for side in sides for run in side]
    if len(set(began)) < len(began):
        raise RecordError(f"{a} and {b} have one run twice; a copy is no repeat")
    lies = _design(*sides)
    lines = [_head(name, path, side) for name, path, side in zip("AB", (a, b), sides, strict=True)]
    lines += [line for name, side in zip("AB", sides, strict=True) for line in _failed(name, side)]
    lines += ["", f"{'':14}{'A':>12}{'B':>12}{'A/B':>9}   95 % interval"]
    for measure, unit in MEASURES.items():
        of_a, of_b = ([run["values"].get(measure) for run in side] for side in sides)
        if None in (*of_a, *of_b):
            lines.append(f"{unit:14}not compared: {_lacking(measure, sides)}")
        else:
            lines.append(_row(unit, of_a, of_b, lies, _errors(measure, sides)))
    lines += ["", _note(sides, lies)]
    if sides[0][0]["simulated"]:
        lines.append("All readings are simulated.")
    return "\n".join(lines)


def _design(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> Design:
    """How the runs lie in time. A user's own runs have no common random order."""
    unordered = {"platform": "", "order_seed": None, "order_block": None}
    runs_a, runs_b = ([{**run, **unordered} for run in side] for side in (a, b))
    return design(runs_a, runs_b, list(map(_gpus, a)), list(map(_gpus, b)))


def _gpus(run: Mapping[str, Any]) -> Gpus:
    uuids = [gpu.get("uuid") for gpu in run["gpus"]]
    return Gpus() if None in uuids else Gpus(uuids)


def _head(name: str, path: Path, side: Sequence[Mapping[str, Any]]) -> str:
    on = _gpus_in_words(side[0])
    return f"{name}: {path}: {counted(len(side), 'run')} on {on}, rung {side[0]['rung']}"


def _failed(name: str, side: Sequence[Mapping[str, Any]]) -> list[str]:
    """Says which commands of a side did not end well: they may have done less work than others."""
    failed = [run for run in side if run.get("exit_code") or run.get("signal")]
    if not failed:
        return []
    of = f"{len(failed)} of {counted(len(side), 'run')} of {name}"
    return [f"{of} ended with an error, and may have done less than the others."]


def _gpus_in_words(run: Mapping[str, Any]) -> str:
    models = Counter(str(gpu["name"]) for gpu in run["gpus"])
    return ", ".join(f"{count}× {model}" for model, count in sorted(models.items())) or "no GPUs"


def _errors(measure: str, sides: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[float, ...] | None:
    """By how much the energies of either side may be off, because the load is in step with the
    sensor; None where a run has no counter to tell."""
    if not measure.startswith(("energy_", "power_")):
        return 0.0, 0.0
    told = [[_error(run["values"]) for run in side] for side in sides]
    known = [[share for share in of_side if share is not None] for of_side in told]
    return tuple(map(max, known)) if known == told else None


def _error(values: Mapping[str, float]) -> float | None:
    """The error of a run's energy by the sensor's looks. Records of before 1.1 do not tell it; it
    follows from the counter and power."""
    energy_j, integral_j = values.get("energy_j"), values.get("energy_integral_j")
    if "energy_error_share" in values or not energy_j or not integral_j or energy_j == integral_j:
        return values.get("energy_error_share")
    return abs(integral_j / energy_j - 1)


def _row(
    unit: str,
    a: Sequence[float],
    b: Sequence[float],
    lies: Design,
    errors: tuple[float, ...] | None,
) -> str:
    of = ratio(a, b, lies)
    span = "not known"
    if of.coverage is not None and errors is None:
        span += ": no energy counter"
    elif of.coverage is not None and errors is not None:
        low, high = widened(of.low, of.high, *errors)
        span = f"{low:.4f} to {high:.4f}"
    means = [sum(side) / len(side) for side in (a, b)]
    return f"{unit:14}{means[0]:>12.5g}{means[1]:>12.5g}{of.estimate:>9.4f}   {span}"


def _lacking(measure: str, sides: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Why runs lack a measure, by the codes of their records, and how many runs of which side."""
    reasons = []
    for name, side in zip("AB", sides, strict=True):
        codes = [
            str(run["missing"].get(measure, "no_reason"))
            for run in side
            if run["values"].get(measure) is None
        ]
        reasons += [
            f"{code.replace('_', ' ')} in {count} of {counted(len(side), 'run')} of {name}"
            for code, count in Counter(codes).items()
        ]
    return "; ".join(reasons)


def _note(sides: Sequence[Sequence[Any]], lies: Design) -> str:
    if min(map(len, sides)) < FEWEST_RUNS:
        return f"An interval needs {FEWEST_RUNS} runs a side; repeat both, by turns."
    if lies.one_sided_because:
        return f"Something may have acted on one side alone: {lies.one_sided_because}."
    return "Dates and GPUs acted on both sides alike. A/B is of geometric means."
