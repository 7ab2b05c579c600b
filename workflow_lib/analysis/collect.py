"""Collects the runs of a plan's cells into the tables of a sweep.

:data:`~workflow_lib.records.tables.TABLES` lists them. ``kernels`` and ``traces`` hold profiled
runs, all others hold measured runs.

Every cell of the plan has a row, whatever its outcome, so that failures stay visible.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from workflow_lib import results as places
from workflow_lib.analysis import metrics, samples
from workflow_lib.analysis.reduce import reduced_run
from workflow_lib.analysis.run_row import BESIDE_MEASURES
from workflow_lib.analysis.traces.of_run import profiled_shares
from workflow_lib.records import bounds
from workflow_lib.records.cell_axes import IDENTITY
from workflow_lib.records.checksums import write_checksums
from workflow_lib.records.files import read_json, read_outcome
from workflow_lib.records.measures import MEASURES
from workflow_lib.records.outcomes import Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths, SweepPaths
from workflow_lib.records.reading import RecordError, shown
from workflow_lib.records.reasons import Reason, missing
from workflow_lib.records.tables import KERNELS, PLAN, SERIES, STEP_TIMES, TABLES, TRACES
from workflow_lib.table_files import check_reasons, read_table, schema, table, write_table
from workflow_lib.words import counted

#: fewer values have only a range
FEWEST_FOR_INTERVAL = 5
_WANTED_COVERAGE = 0.95

RANGE, ORDER_STATISTICS = "range", "order_statistics"


class Interval(NamedTuple):
    """The interval of a median: its ends, its kind, and the probability that it holds the true
    median."""

    low: float
    high: float
    kind: str
    #: null where ``kind`` is RANGE
    coverage: float | None


def interval(values: Sequence[float]) -> Interval:
    """The interval of the median of one or more values.

    Fewer than five have only their range. Five or more have an interval that holds the true median
    with a known probability, whatever the distribution. The interval from the k-th lowest to the
    k-th highest of n values holds it with this probability::

        1 − 2·(C(n, 0) + C(n, 1) + … + C(n, k − 1)) / 2ⁿ

    (W. R. Thompson, Annals of Mathematical Statistics 7(3), 1936). The median lies outside only if
    fewer than k of the n values fall on one side of it, and each value falls on either side with
    probability ½. The narrowest interval that reaches 95 % is taken. With five values none does;
    their range has 93.75 %. docs/explanation/measurement.md says why this is no bootstrap.
    """
    ordered, count = sorted(values), len(values)
    if count < FEWEST_FOR_INTERVAL:
        return Interval(ordered[0], ordered[-1], RANGE, None)
    cut, outside = 0, 1 / 2**count
    # ``outside`` is the probability that the true median lies beyond one end of the interval.
    while 1 - 2 * (wider := outside + math.comb(count, cut + 1) / 2**count) >= _WANTED_COVERAGE:
        cut, outside = cut + 1, wider
    return Interval(ordered[cut], ordered[-1 - cut], ORDER_STATISTICS, 1 - 2 * outside)


#: outcome of a run that has not ended; only tables use it
NOT_RUN = "not_run"
_NOT_ENDED = Reason("not_ended")

_NAMES = tuple(column.name for column in IDENTITY)
#: columns of RUNS, besides measures, that may be null
_DESCRIBED = (
    *("gpu_name", "sensors", "simulated"),
    *BESIDE_MEASURES,
    *("order_seed", "order_block", "order_place", "started_unix_s"),
)


#: tables that are made of rows, and the columns by which these are sorted; the other tables keep
#: the order of cells and runs
_ORDER = {
    "runs": ("cell", "run"),
    "cells": ("cell",),
    "gpus": ("cell", "run", "node", "gpu"),
    "unused_gpus": ("cell", "run", "node", "watched", "gpu"),
    "nodes": ("cell", "run", "node"),
    "overhead": ("cell", "run", "sample_rate_hz"),
}
#: keys of a run's summary that hold rows of the tables of the same names
_PARTS = ("gpus", "unused_gpus", "nodes", "overhead")


@dataclass
class _Gathered:
    """The contents of each table, gathered while runs are read one after the other."""

    rows: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {name: [] for name in _ORDER}
    )
    #: of the other tables: one frame for each run
    frames: dict[str, list[pl.DataFrame]] = field(
        default_factory=lambda: {name: [] for name in TABLES if name not in _ORDER}
    )


def collect(plan: Path, results: Path, output: Path) -> None:
    """Write the tables of a plan's cells to the directory ``output``.

    Every table is written; one for which nothing was measured has no rows. Raises FileNotFoundError
    if the plan, or a table of a run that was reduced, is missing, and RecordError if a file is
    damaged.
    """
    gathered = _Gathered()
    for cell in read_table(plan, PLAN).sort("cell").iter_rows(named=True):
        runs: list[dict[str, Any]] = []
        profiled = None
        if cell["feasible"]:
            for repeat in range(1, cell["repeats"] + 1):
                paths = RunPaths(places.run_directory(results, cell["cell"], repeat))
                first = not any(run["outcome"] == Outcome.COMPLETED.value for run in runs)
                runs.append(_gather_run(gathered, paths, cell, repeat, first))
            if cell["profiled_steps"]:
                number = places.PROFILED_RUN
                paths = RunPaths(places.run_directory(results, cell["cell"], number))
                profiled = _gather_traces(gathered, paths, cell["gpus"])
        gathered.rows["cells"].append(_cell_row(cell, runs, profiled))
    sweep = SweepPaths(output)
    for name, kind in TABLES.items():
        if name in _ORDER:
            frame = table(gathered.rows[name], kind.columns).sort(*_ORDER[name])
        else:
            # The frames are already in the order of cells and runs.
            frame = pl.concat([pl.DataFrame(schema=schema(kind.columns)), *gathered.frames[name]])
        write_table(frame, sweep.table(name))
    write_checksums(sweep.table_checksums, map(sweep.table, TABLES))


def _gather_run(
    gathered: _Gathered, paths: RunPaths, cell: Mapping[str, Any], repeat: int, first: bool
) -> dict[str, Any]:
    """Add what a measured run left, and return its row of RUNS. Its series is added only if it is
    the ``first``: no earlier run of the cell completed."""
    summary, steps, series = _read_run(paths, cell, repeat)
    gathered.rows["runs"].append(summary["run"])
    for name in _PARTS:
        gathered.rows[name].extend(summary[name])
    if steps is not None:
        gathered.frames["steps"].append(steps)
    if first and series is not None:
        gathered.frames["series"].append(series)
    run: dict[str, Any] = summary["run"]
    return run


def _gather_traces(gathered: _Gathered, paths: RunPaths, ranks: int) -> dict[str, Any]:
    """Add the tables of a profiled run, and return the columns of CELLS that describe it. It has
    shares of time only if all its ``ranks`` left a trace."""

    def profiled_columns(outcome: str, cause: str) -> dict[str, Any]:
        return {"profiled_outcome": outcome, "profiled_cause": str(cause)}

    ended = _ended(paths)
    if ended is None:
        return profiled_columns(NOT_RUN, _NOT_ENDED)
    if ended.outcome is not Outcome.COMPLETED:
        return profiled_columns(ended.outcome.value, ended.cause)
    if not (paths.kernels.is_file() and paths.trace_times.is_file()):
        unread = Reason("traces_not_analysed")
        return profiled_columns(ended.outcome.value, unread)
    kernels = read_table(paths.kernels, KERNELS)
    gathered.frames["kernels"].append(kernels)
    traces = read_table(paths.trace_times, TRACES)
    gathered.frames["traces"].append(traces)
    if traces.height < ranks:
        left = f"{traces.height} of {counted(ranks, 'rank')} left a trace"
        return profiled_columns(ended.outcome.value, Reason("traces_incomplete", left=left))
    return profiled_columns(ended.outcome.value, ended.cause) | profiled_shares(traces, kernels)


def _ended(paths: RunPaths) -> OutcomeRecord | None:
    with samples.of_run(paths):
        return read_outcome(paths)


def _read_run(
    paths: RunPaths, cell: Mapping[str, Any], repeat: int
) -> tuple[dict[str, Any], pl.DataFrame | None, pl.DataFrame | None]:
    """A run's summary, its steps and its series. Steps and series are None if the run has none."""
    ended = _ended(paths)
    summary: Any = None
    if ended is not None and paths.summary.is_file():
        summary = read_summary(paths.summary)
        if of_another_attempt(summary["run"], ended):
            summary = None
    if ended is not None and ended.outcome is Outcome.TELEMETRY_INVALID and summary is None:
        # The workflow does not reduce this run, because it is not a result; but its steps are
        # valid.
        reduced = reduced_run(paths, repeat)
        _check_identity(paths, reduced.summary["run"], cell, repeat)
        return reduced.summary, reduced.steps, reduced.series
    if summary is not None:
        _check_identity(paths, summary["run"], cell, repeat)
        series = None
        if ended is not None and ended.outcome is Outcome.COMPLETED:
            series = read_table(paths.series, SERIES)
        return dict(summary), read_table(paths.step_times, STEP_TIMES), series
    if ended is None:
        outcome, cause, reason = NOT_RUN, str(_NOT_ENDED), _NOT_ENDED
    else:
        outcome, cause = ended.outcome.value, ended.cause
        reason = Reason("not_completed", outcome=outcome)
        if ended.outcome is Outcome.COMPLETED:
            cause = reason = Reason("not_reduced")
    unknown = dict.fromkeys((*_DESCRIBED, *MEASURES))
    run = {
        **{name: cell[name] for name in _NAMES},
        **unknown,
        "run": repeat,
        "outcome": outcome,
        "cause": str(cause),
        **missing(dict.fromkeys(sorted(unknown), reason)),
    }
    return {"run": run, **{name: [] for name in _PARTS}}, None, None


def of_another_attempt(run: Mapping[str, Any], ended: OutcomeRecord) -> bool:
    """Whether a row of RUNS is of an earlier attempt at the run than the one that ended so."""
    began = run.get("started_unix_s"), ended.started_unix_s
    return run.get("outcome") != ended.outcome.value or (None not in began and began[0] != began[1])


def read_summary(path: Path) -> dict[str, Any]:
    """Read a run's ``summary.json``. Raises FileNotFoundError, and RecordError if it is damaged."""
    summary = read_json(path, bounds.SUMMARY_BYTES)
    remedy = "remove it, and the same command makes it again"
    if not isinstance(summary, dict) or summary.keys() != {"run", *_PARTS}:
        raise RecordError(f"{path}: expected an object of run, {', '.join(_PARTS)}; {remedy}")
    for name, rows in {**summary, "runs": [summary["run"]]}.items():
        if name == "run":
            continue
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise RecordError(f"{path}: {name} is {shown(rows)}, expected rows; {remedy}")
        try:
            check_reasons(table(rows, TABLES[name].columns))
        except RecordError as error:
            raise RecordError(f"{path}: {name}: {error}; {remedy}") from None
    return summary


def _check_identity(
    paths: RunPaths, run: Mapping[str, Any], cell: Mapping[str, Any], repeat: int
) -> None:
    for name in _NAMES:
        if name == "emulated":
            continue  # a label, which a platform may have got since
        if run.get(name) != cell[name] and not (name == "data_definition" and run[name] is None):
            raise RecordError(
                f"{paths.summary}: {name} is {run.get(name)!r}, but the plan has {cell[name]!r}; "
                "the run is of another cell: move it away, or reduce it again"
            )
    if run["run"] != repeat:
        raise RecordError(f"{paths.summary}: it is of run {run['run']}, expected {repeat}")


def _cell_row(
    cell: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], profiled: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A cell's row: medians and their intervals over its completed runs, and the outcomes of all
    its runs. ``profiled`` holds the columns about its profiled run, if it has one."""
    completed = [run for run in runs if run["outcome"] == Outcome.COMPLETED.value]
    outcome, cause = _fate(cell, runs)
    peaks = sorted({r["power_peak_sensor"] for r in completed if r["power_peak_sensor"]})
    counts = Counter(run["outcome"] for run in runs)
    row: dict[str, Any] = {
        **{name: cell[name] for name in _NAMES},
        "emulated": next(filter(None, (record["emulated"] for record in (cell, *runs))), None),
        "gpu_name": ", ".join(sorted({r["gpu_name"] for r in completed if r["gpu_name"]})) or None,
        "simulated": any(run["simulated"] for run in runs),
        "power_peak_sensor": "; ".join(peaks) or None,
        "allocator": cell_settings(completed),
        "memory_pressure": cell_pressure(completed),
        "repeats": cell["repeats"],
        "completed": len(completed),
        "outcome": outcome,
        "outcomes": ", ".join(f"{name} {counts[name]}" for name in sorted(counts)) or outcome,
        "cause": str(cause),
    }
    row |= profiled or {}
    for name in MEASURES:
        values = [float(run[name]) for run in completed if run[name] is not None]
        # A median over some of the completed runs would hide that the others lack the value.
        if not values or len(values) < len(completed):
            continue
        if name == "power_peak_w" and len(peaks) > 1:
            continue  # the sensors differ, so a median describes none
        about = interval(values)
        row[name] = metrics.median(values)
        row[f"{name}_low"], row[f"{name}_high"] = about.low, about.high
        row["interval"], row["interval_coverage"] = about.kind, about.coverage
    return row


def cell_settings(completed: Sequence[Mapping[str, Any]]) -> str | None:
    """The settings of torch's allocator in completed runs; null if those of one are not known."""
    settings = {run["allocator"] for run in completed}
    return None if None in settings else "; ".join(sorted(settings)) or None


def cell_pressure(completed: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether a completed run was under memory pressure; null if that is not known."""
    pressures = {run["memory_pressure"] for run in completed}
    if True in pressures:
        return True
    return None if None in pressures or not pressures else False


def _fate(cell: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The cell's outcome and its cause: completed if any run completed, else the most frequent
    outcome of the runs that ended."""
    if not cell["feasible"]:
        return Outcome.INFEASIBLE.value, cell["reason"]
    ended = [run for run in runs if run["outcome"] != NOT_RUN]
    outcomes = [run["outcome"] for run in ended or runs]
    if Outcome.COMPLETED.value in outcomes:
        outcome: str = Outcome.COMPLETED.value
    elif outcomes:
        outcome = Counter(outcomes).most_common(1)[0][0]
    else:
        return NOT_RUN, Reason("no_run_planned")
    return outcome, next(run["cause"] for run in runs if run["outcome"] == outcome)
