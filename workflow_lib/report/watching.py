"""The page's lines on measuring itself: whether runs were steady, and what sampling cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_lib.records.files import read_if_there
from workflow_lib.records.nodes import CoolDown
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reasons import Reason
from workflow_lib.report.figures.cell_names import Row, completed, completed_runs_of, natural
from workflow_lib.report.figures.numbers import NOTHING, significant
from workflow_lib.results import run_directory
from workflow_lib.words import counted


@dataclass(frozen=True)
class Steadiness:
    """Whether completed runs were steady: a sentence for each group of cells."""

    #: cells with steady runs, with the margins of their drift
    steady: tuple[str, ...]
    #: cells with runs that were not steady, with their drift
    never: tuple[str, ...]
    #: cells with runs for which that is not known, and why
    unknown: tuple[str, ...]


def steadiness(cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]) -> Steadiness:
    """Which cells were steady, which were not, and for which it is not known.

    A cell is in several groups if its runs differ.
    """
    steady: list[str] = []
    never: list[str] = []
    unknown: dict[str, list[str]] = {}
    for cell, label in zip(cells, labels, strict=True):
        ended = completed_runs_of(cell, runs)
        name = f"{label} ({cell['model']} on {cell['platform']}"
        if steady_runs := [run for run in ended if run["steady"]]:
            margins = ", ".join(_margin(steady_runs, *drift) for drift in _DRIFTS)
            steady.append(f"{name}{_part(steady_runs, ended)}: {margins}")
        if drifting := [run for run in ended if run["steady"] is False]:
            drifts = ", ".join(_drift(drifting, *drift) for drift in _DRIFTS)
            never.append(f"{name}{_part(drifting, ended)}: {drifts}")
        untold: dict[str, list[Row]] = {}
        for run in ended:
            if run["steady"] is None:
                untold.setdefault(Reason.of_column(run, "steady"), []).append(run)
        for reason, some in untold.items():
            known = some[0]["step_time_drift_margin"] is not None
            margins = ", ".join(_margin(some, *drift) for drift in _DRIFTS) if known else ""
            unknown.setdefault(reason, []).append(
                name + _part(some, ended) + f": {margins}" * known
            )
    return Steadiness(tuple(steady), tuple(never), _grouped(unknown))


def steady_state(cell: Row, runs: Sequence[Row]) -> str:
    """The table's entry for whether a cell's runs were steady: yes, no, not told, or several with
    counts."""
    ended = completed_runs_of(cell, runs)
    steady_runs = [run for run in ended if run["steady"]]
    fates = (
        ("yes", len(steady_runs)),
        ("no", sum(run["steady"] is False for run in ended)),
        ("not told", sum(run["steady"] is None for run in ended)),
    )
    there = [(fate, count) for fate, count in fates if count]
    if len(there) < 2:
        return there[0][0] if there else NOTHING
    return ", ".join(f"{fate} ({counted(count, 'run')})" for fate, count in there)


def _part(some: Sequence[Row], ended: Sequence[Row]) -> str:
    """How many of a cell's runs are meant, if it has several, and the closing bracket."""
    return ")" if len(ended) == 1 else f", {len(some)} of {len(ended)} runs)"


def _grouped(names: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(f"{what}: {'; '.join(names[what])}" for what in sorted(names, key=natural))


#: column, what drifts, unit, factor from the column to the unit
_DRIFTS = (
    ("step_time_drift", "step time", "%", 100.0),
    ("power_drift", "power", "%", 100.0),
    ("temperature_drift_c", "temperature", "°C", 1.0),
)


#: of a drift, the change from the first to the last measured step over the median
_HALF_PERCENT = 50.0


def _drift(runs: Sequence[Row], column: str, what: str, unit: str, factor: float) -> str:
    """The largest drift of some runs, with its sign."""
    known = [run[column] for run in runs if run[column] is not None]
    if not known:
        return f"{what} {NOTHING}"
    worst = factor * max(known, key=abs)
    if unit == "%" and abs(worst) > _HALF_PERCENT:
        # A straight line does not describe such a change, so no number does.
        return f"{what} {'rose' if worst > 0 else 'fell'} by more than half"
    return f"{what} {'+' if worst > 0 else ''}{significant(worst, 2, decimals=2)} {unit}"


def _margin(runs: Sequence[Row], column: str, what: str, unit: str, factor: float) -> str:
    """The largest margin of a drift: the drift is known to so much."""
    name = f"{column.removesuffix('_c')}_margin{'_c' if column.endswith('_c') else ''}"
    known = [run[name] for run in runs if run[name] is not None]
    if not known:
        return f"{what} {NOTHING}"
    return f"{what} within ±{significant(factor * max(known), 2, decimals=2)} {unit}"


def warm_starts(runs: Iterable[Row], labels: Mapping[str, str], results: Path) -> tuple[str, ...]:
    """A line for each run that started with GPUs warmer than its cell asks, because the wait for
    cool ones reached its limit. ``labels`` maps cells to labels; ``results`` holds the runs. Raises
    RecordError if a record is damaged."""
    lines = []
    for run in runs:
        if not completed(run) or run["cool_down_to_c"] is None:
            continue
        paths = RunPaths(run_directory(results, run["cell"], run["run"]))
        waited = read_if_there(paths.cool_down, CoolDown)
        if waited is not None and not waited.reached:
            lines.append(
                f"{labels[run['cell']]} ({run['model']} on {run['platform']}), run {run['run']}: "
                f"at {waited.hottest_after_c:g} °C after {waited.waited_s:.3g} s, where at most "
                f"{run['cool_down_to_c']:g} °C was asked"
            )
    return tuple(lines)


def trained_unwatched(runs: Iterable[Row]) -> list[dict[str, str | int]]:
    """The measures of training of runs that are invalid only for their telemetry."""
    return [
        {
            "cell": run["cell"],
            "run": run["run"],
            "step_time_s": _number(run["step_time_s"]),
            "tokens_per_s_per_gpu": _number(run["tokens_per_s_per_gpu"]),
            "mfu_causal": _number(run["mfu_causal"], 100.0),
            "loss_last": _number(run["loss_last"]),
        }
        for run in runs
        if run["outcome"] == Outcome.TELEMETRY_INVALID.value and run["step_time_s"] is not None
    ]


def overhead_lines(overhead: Iterable[Row], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The lines of "What sampling costs", for each run and rate; ``labels`` maps cells
    to labels."""
    lines = []
    order = sorted(overhead, key=lambda row: (row["cell"], row["run"], row["sample_rate_hz"]))
    for row in order:
        low, high = row["slowdown_low"], row["slowdown_high"]
        off = row["sample_rate_hz"] == 0
        interval = "" if off else f"{_percent(low)} to {_percent(high)}"
        if not off and None in (low, high):
            interval = Reason.of_column(row, "slowdown_low")
        lines.append(
            {
                "cell": row["cell"],
                "label": labels[row["cell"]],
                "run": row["run"],
                "simulated": row["simulated"],
                "rate": "off" if off else f"{row['sample_rate_hz']:g}",
                "slowdown": "reference" if off else _percent(row["slowdown"]),
                "interval": interval,
                "pairs": NOTHING if off or row["pairs"] is None else row["pairs"],
                "steps": NOTHING if row["steps"] is None else row["steps"],
                "step_time_s": _number(row["step_time_s"]),
                "sampler_cpu_percent": _percent(row["sampler_cpu_share"]),
                "sampler_memory_mb": _number(row["sampler_memory_bytes"], 1e-6),
                "achieved_rate_hz": NOTHING if off else _number(row["achieved_rate_hz"], 1.0, 4),
                "late_percent": NOTHING if off else _percent(row["late_share"]),
            }
        )
    return lines


def _number(
    value: float | None, factor: float = 1.0, digits: int = 3, decimals: int | None = None
) -> str:
    return NOTHING if value is None else significant(value * factor, digits, decimals)


def _percent(share: float | None) -> str:
    return _number(share, 100.0, 2, decimals=3)
