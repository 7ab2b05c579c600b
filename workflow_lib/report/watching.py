"""What the page says of the watching itself: how wrong energies may be, whether a run was steady,
and what sampling cost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow_lib.records import Outcome
from workflow_lib.report.cells import Row
from workflow_lib.report.quantities import NOTHING, significant


def systematic_error(runs: Iterable[Row]) -> str:
    """The systematic error of the sensors behind the runs' energies: "±6 % (NVIDIA H200)".

    It is empty where no run has an energy.
    """
    found: dict[str, set[str]] = {}
    for run in runs:
        if run["energy_j"] is not None:
            share = run["energy_systematic_share"]
            size = "unknown size" if share is None else f"±{100 * share:g} %"
            found.setdefault(size, set()).add(run["gpu_name"] or "unnamed GPU")
    return ", ".join(f"{size} ({'; '.join(sorted(found[size]))})" for size in sorted(found))


def unsteady(cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]) -> list[str]:
    """A sentence on each cell of which a completed run never became steady."""
    sentences = []
    for cell, label in zip(cells, labels, strict=True):
        ended = [run for run in runs if run["cell"] == cell["cell"] and _is_completed(run)]
        never = [run for run in ended if run["steady"] is False]
        if never:
            several = "" if len(ended) == 1 else f", {len(never)} of {len(ended)} runs"
            drifts = ", ".join(_drift(never, *each) for each in _DRIFTS)
            sentences.append(f"{label} ({cell['model']} on {cell['platform']}{several}): {drifts}")
    return sentences


#: column, what drifts, unit, by what the column is multiplied to be in it
_DRIFTS = (
    ("step_time_drift", "step time", "%", 100.0),
    ("power_drift", "power", "%", 100.0),
    ("temperature_drift_c", "temperature", "°C", 1.0),
)


def _drift(runs: Sequence[Row], column: str, what: str, unit: str, factor: float) -> str:
    """The largest drift of some runs, with its sign."""
    known = [run[column] for run in runs if run[column] is not None]
    if not known:
        return f"{what} {NOTHING}"
    worst = factor * max(known, key=abs)
    return f"{what} {'+' if worst > 0 else ''}{significant(worst, 2)} {unit}"


def trained_unwatched(runs: Iterable[Row]) -> list[dict[str, str | int]]:
    """What the training gave of the runs that telemetry alone made invalid."""
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
    """A line of "What sampling costs" for each run and rate; ``labels`` are those of cells."""
    lines = []
    order = sorted(overhead, key=lambda row: (row["cell"], row["run"], row["sample_rate_hz"]))
    for row in order:
        low, high = row["slowdown_low"], row["slowdown_high"]
        off = row["sample_rate_hz"] == 0
        interval = "" if off else json.loads(row["missing_reasons"]).get("slowdown_low", "")
        if low is not None and high is not None:
            interval = f"{_number(low, 100.0, 2)} to {_number(high, 100.0, 2)}"
        lines.append(
            {
                "cell": row["cell"],
                "label": labels[row["cell"]],
                "run": row["run"],
                "simulated": row["simulated"],
                "rate": "off" if off else f"{row['sample_rate_hz']:g}",
                "slowdown": "reference" if off else _number(row["slowdown"], 100.0, 2),
                "interval": interval,
                "pairs": NOTHING if off or row["pairs"] is None else row["pairs"],
                "steps": NOTHING if row["steps"] is None else row["steps"],
                "step_time_s": _number(row["step_time_s"]),
                "sampler_cpu_percent": _number(row["sampler_cpu_share"], 100.0, 2),
                "sampler_memory_mb": _number(row["sampler_memory_bytes"], 1e-6),
                "achieved_rate_hz": NOTHING if off else _number(row["achieved_rate_hz"], 1.0, 4),
                "late_percent": NOTHING if off else _number(row["late_share"], 100.0, 2),
            }
        )
    return lines


def _number(value: float | None, factor: float = 1.0, digits: int = 3) -> str:
    return NOTHING if value is None else significant(value * factor, digits)


def _is_completed(run: Row) -> bool:
    return bool(run["outcome"] == Outcome.COMPLETED.value)
