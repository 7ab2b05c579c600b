"""Collects the runs of a plan's cells into ``runs``, ``gpus``, ``overhead`` and ``cells.parquet``.

Every cell of the plan is there, whatever became of it: a table that leaves out what failed tells
only of what went well.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib.analysis import metrics
from workflow_lib.analysis.reduce import summarise
from workflow_lib.analysis.tables import read_table, table, write_table
from workflow_lib.records import (
    CELLS,
    GPUS,
    IDENTITY,
    MEASURES,
    OVERHEAD,
    PLAN,
    RUNS,
    Outcome,
    RecordError,
    RunPaths,
    read_json,
    read_outcome,
)
from workflow_lib.results import run_directory

#: the outcome, in tables alone, of a run that has not ended
NOT_RUN = "not_run"

_NAMES = tuple(column.name for column in IDENTITY)


def collect(plan: Path, results: Path, output: Path) -> None:
    """Write the four tables of a plan's cells to the directory ``output``; overhead has no rows
    where no run's sampling rates took turns.

    Raises FileNotFoundError where there is no plan, and RecordError where a file is damaged.
    """
    cells = read_table(plan, PLAN).sort("cell").to_dicts()
    runs, gpus, overhead = [], [], []
    for cell in cells:
        if not cell["feasible"]:
            continue
        for repeat in range(1, cell["repeats"] + 1):
            summary = _read_run(run_directory(results, cell["cell"], repeat), cell, repeat)
            runs.append(summary["run"])
            gpus.extend(summary["gpus"])
            overhead.extend(summary["overhead"])
    by_cell: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        by_cell.setdefault(run["cell"], []).append(run)
    rows = [_cell_row(cell, by_cell.get(cell["cell"], [])) for cell in cells]
    write_table(table(runs, RUNS).sort("cell", "run"), output / "runs.parquet")
    write_table(table(gpus, GPUS).sort("cell", "run", "node", "gpu"), output / "gpus.parquet")
    rates = table(overhead, OVERHEAD).sort("cell", "run", "sample_rate_hz")
    write_table(rates, output / "overhead.parquet")
    write_table(table(rows, CELLS).sort("cell"), output / "cells.parquet")


def _read_run(directory: Path, cell: Mapping[str, Any], repeat: int) -> dict[str, Any]:
    """A run's row and those of its GPUs and rates, from its summary where it has one."""
    paths = RunPaths(directory)
    ended = read_outcome(paths)
    summary: Any = None
    if ended is not None and paths.summary.is_file():
        summary = read_json(paths.summary)
        if not isinstance(summary, dict) or summary.keys() != {"run", "gpus", "overhead"}:
            raise RecordError(
                f"{paths.summary}: expected an object of run, gpus and overhead; reduce it anew"
            )
        if summary["run"].get("outcome") != ended.outcome.value:
            summary = None  # of an earlier attempt
    if ended is not None and ended.outcome is Outcome.TELEMETRY_INVALID and summary is None:
        # The workflow reduces results alone, and this is none. But its training went well.
        summary = summarise(paths, repeat)
    if summary is not None:
        _check_identity(paths, summary["run"], cell, repeat)
        return dict(summary)
    if ended is None:
        outcome, cause, reason = NOT_RUN, "the run has not ended", "the run has not ended"
    else:
        outcome, cause, reason = (
            ended.outcome.value,
            ended.cause,
            f"the run ended as {ended.outcome}",
        )
        if ended.outcome is Outcome.COMPLETED:
            cause = reason = "the run completed but has not been reduced: there is no summary of it"
    unknown = {"gpu_name": None, "simulated": None, **{m.name: None for m in MEASURES}}
    run = {
        **{name: cell[name] for name in _NAMES},
        **unknown,
        "run": repeat,
        "outcome": outcome,
        "cause": cause,
        "missing_reasons": json.dumps(dict.fromkeys(sorted(unknown), reason)),
    }
    return {"run": run, "gpus": [], "overhead": []}


def _check_identity(
    paths: RunPaths, run: Mapping[str, Any], cell: Mapping[str, Any], repeat: int
) -> None:
    for name in _NAMES:
        if run.get(name) != cell[name]:
            raise RecordError(
                f"{paths.summary}: {name} is {run.get(name)!r}, but the plan has {cell[name]!r}; "
                "the run is of another cell: move it away, or reduce it anew"
            )
    if run["run"] != repeat:
        raise RecordError(f"{paths.summary}: it is of run {run['run']}, expected {repeat}")


def _cell_row(cell: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A cell's row: medians and ranges over its completed runs, and what became of the others."""
    completed = [run for run in runs if run["outcome"] == Outcome.COMPLETED.value]
    outcome, cause = _fate(cell, runs)
    counts = Counter(run["outcome"] for run in runs)
    row: dict[str, Any] = {
        **{name: cell[name] for name in _NAMES},
        "gpu_name": ", ".join(sorted({r["gpu_name"] for r in completed if r["gpu_name"]})) or None,
        "simulated": any(run["simulated"] for run in runs),
        "repeats": cell["repeats"],
        "completed": len(completed),
        "outcome": outcome,
        "outcomes": ", ".join(f"{name} {counts[name]}" for name in sorted(counts)) or outcome,
        "cause": cause,
    }
    for measure in MEASURES:
        values = [float(r[measure.name]) for r in completed if r[measure.name] is not None]
        # A median over some of the completed runs would hide that the others lack the figure.
        whole = bool(completed) and len(values) == len(completed)
        row[measure.name] = metrics.median(values) if whole else None
        row[f"{measure.name}_low"] = min(values) if whole else None
        row[f"{measure.name}_high"] = max(values) if whole else None
    return row


def _fate(cell: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Completed where any run did; else how most of the runs that ended did, and why."""
    if not cell["feasible"]:
        return Outcome.INFEASIBLE.value, cell["reason"]
    ended = [run for run in runs if run["outcome"] != NOT_RUN]
    outcomes = [run["outcome"] for run in ended or runs]
    if Outcome.COMPLETED.value in outcomes:
        outcome: str = Outcome.COMPLETED.value
    elif outcomes:
        outcome = Counter(outcomes).most_common(1)[0][0]
    else:
        return NOT_RUN, "the plan asks for no run"
    return outcome, next(run["cause"] for run in runs if run["outcome"] == outcome)
