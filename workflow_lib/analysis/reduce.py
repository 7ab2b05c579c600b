"""Reduces a run's directory to three files. ``summary.json`` holds its row of RUNS and its rows of
other tables, ``steps.parquet`` its steps, and ``series.parquet`` its GPUs over time.

Only the measured steps count (:class:`~workflow_lib.analysis.steps.Steps`), and they are the same
in every repeat of a cell. A measure that is not known is null, and ``missing_reasons`` says why. A
total over GPUs is null if one of them is missing, because a sum that skips a GPU makes a run look
more efficient than it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from workflow_lib import results
from workflow_lib.analysis import samples
from workflow_lib.analysis.counters import Counted, counted_shares
from workflow_lib.analysis.known import Known, Values, Why, known, merged
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.nodes import Node, reduce_nodes, unwatched_node
from workflow_lib.analysis.overhead import overhead_rows
from workflow_lib.analysis.power import (
    cool_down_s,
    generation_values,
    gpu_without_sensor,
    peak_sensor,
    power_values,
    sensor_values,
    systematic_share,
)
from workflow_lib.analysis.recordings import Recordings, read_recordings
from workflow_lib.analysis.run_row import counts_of_rank, link_values, run_row, step_values
from workflow_lib.analysis.series import series_rows, step_rows
from workflow_lib.analysis.steady_state import steady_state
from workflow_lib.analysis.steps import Steps, clock_values, read_steps
from workflow_lib.records.cell import Cell
from workflow_lib.records.checksums import write_checksums
from workflow_lib.records.files import read_if_there, read_outcome, read_record
from workflow_lib.records.nodes import CoolDown, TelemetryStart
from workflow_lib.records.outcomes import OrderRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.reasons import Reason
from workflow_lib.records.tables import SERIES, STEP_TIMES
from workflow_lib.records.whole_files import write_json
from workflow_lib.table_files import process_pool, schema, table, write_table

_ALTERNATED = Reason("rates_alternate")
_NOT_COMPUTED = Reason("not_computed")
#: runs that a process takes at once: to start one takes longer than to reduce a run
_CHUNK = 8


def reduce_run(directory: Path) -> None:
    """Write the three files of the run in ``directory``, which is ``<cell>/run<k>``.

    Raises FileNotFoundError or RecordError where the run has not ended, its files are damaged, or
    it is not a measured run.
    """
    paths = RunPaths(directory)
    if results.is_profiled(directory):
        raise RecordError(
            f"{directory}: the run is profiled, not measured; analyse its traces instead: python "
            "-m workflow_lib.analysis traces, with this directory"
        )
    # A summary means that all three files are there: it is removed first and written last.
    paths.summary.unlink(missing_ok=True)
    number = results.run_number(directory)
    with samples.of_run(paths):
        reduced = reduced_run(paths, number)
    write_table(reduced.steps, paths.step_times)
    write_table(reduced.series, paths.series)
    write_json(paths.summary, reduced.summary)
    write_checksums(paths.reduced_checksums, paths.reduced())


def reduce_runs(directories: Sequence[Path], processes: int) -> list[str]:
    """Reduce each run; return a message for each run that could not be reduced, in order.

    A damaged run does not stop the others. At most one process starts for every eight runs.
    """
    processes = min(processes, math.ceil(len(directories) / _CHUNK))
    if processes <= 1:
        problems = [_problem(directory) for directory in directories]
    else:
        with process_pool(processes) as pool:
            problems = list(pool.map(_problem, directories, chunksize=_CHUNK))
    return [problem for problem in problems if problem]


def _problem(directory: Path) -> str:
    try:
        reduce_run(directory)
    except (RecordError, OSError) as error:
        return samples.in_full(error)
    return ""


@dataclass(frozen=True)
class Reduced:
    """A reduced run: its rows of all tables."""

    #: ``run``, a row of RUNS, and rows of ``gpus``, ``unused_gpus``, ``nodes`` and ``overhead``
    summary: dict[str, Any]
    #: rows of STEP_TIMES; none if steps cannot be read
    steps: pl.DataFrame
    #: rows of SERIES; none if the run has no telemetry, or if sampling rates alternated
    series: pl.DataFrame


@dataclass
class _Parts:
    """The parts of a reduced run; what a run does not have stays empty."""

    values: Values = field(default_factory=dict)
    #: rows of these tables, less ``cell`` and ``run``
    gpus: list[dict[str, Any]] = field(default_factory=list)
    unused_gpus: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    overhead: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    series: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema(SERIES)))
    #: why a measure that is not among the values is null
    otherwise: Reason = _NOT_COMPUTED


def reduced_run(paths: RunPaths, run: int) -> Reduced:
    """Reduce an ended run, without writing files.

    A run whose telemetry is invalid keeps the measures of its steps, because training went well.
    Raises FileNotFoundError or RecordError as :func:`reduce_run` does.
    """
    if not paths.cell.is_file():
        raise FileNotFoundError(f"{paths.cell}: missing; expected the directory of a run")
    cell = read_record(paths.cell, Cell)
    ended = read_outcome(paths)
    if ended is None:
        raise FileNotFoundError(
            f"{paths.directory}: the run has neither {paths.outcome.name} nor "
            f"{paths.failure.name}: it has not ended, or its end has not been classified yet"
        )
    described = _described(paths, ended.outcome)
    parts = _Parts(otherwise=Reason("not_completed", outcome=ended.outcome.value))
    if ended.outcome is Outcome.COMPLETED:
        steps = read_steps(paths, cell)
        if cell.telemetry.interleaved_rates_hz:
            parts = _alternating(paths, cell, steps, bool(described["simulated"][0]))
        else:
            parts = _whole(paths, cell, steps)
    elif ended.outcome is Outcome.TELEMETRY_INVALID:
        parts = _unwatched(paths, cell, Reason("telemetry_invalid", cause=ended.cause))
    identity = {"cell": cell.id, "run": run}
    values = merged(described, _in_time(paths, ended), parts.values)
    summary = {
        "run": run_row(cell, run, ended, values, parts.otherwise),
        "gpus": [{**identity, **row} for row in parts.gpus],
        "unused_gpus": [{**identity, **row} for row in parts.unused_gpus],
        "nodes": [{**identity, **row} for row in parts.nodes],
        "overhead": [{**identity, **row} for row in parts.overhead],
    }
    step_times = table([{**identity, **step} for step in parts.steps], STEP_TIMES)
    series = parts.series.with_columns(cell=pl.lit(cell.id), run=pl.lit(run, pl.Int64))
    return Reduced(summary, step_times, series.select(list(schema(SERIES))))


def _alternating(paths: RunPaths, cell: Cell, steps: Steps, simulated: bool) -> _Parts:
    """Reduce a run whose sampling rates alternated: the measures of its steps, and each rate's
    cost."""
    nodes = sorted({rank.node for rank in steps.ranks})
    values, rows = _training(cell, steps, _ALTERNATED)
    return _Parts(
        values=merged(values, {"cool_down_s": cool_down_s(paths, cell)}),
        overhead=overhead_rows(paths, cell, nodes, steps.measured, simulated),
        steps=rows,
        otherwise=_ALTERNATED,
    )


def _unwatched(paths: RunPaths, cell: Cell, otherwise: Reason) -> _Parts:
    """Reduce a run whose telemetry is invalid: the measures of its steps, if they can be read."""
    try:
        values, rows = _training(cell, read_steps(paths, cell), otherwise)
    except (FileNotFoundError, RecordError) as error:
        # Telemetry is also invalid if a rank's record is torn or missing.
        unread = Reason("steps_unreadable", otherwise=otherwise, why=_within(paths, error))
        return _Parts(otherwise=unread)
    return _Parts(values=values, steps=rows, otherwise=otherwise)


def _training(cell: Cell, steps: Steps, no_power: Reason) -> tuple[Values, list[dict[str, Any]]]:
    """The measures that need no telemetry, and the rows of STEP_TIMES. ``no_power`` is why measures
    of telemetry are null."""
    steadiness = steady_state(cell, steps, None, no_power)
    values = merged(
        step_values(cell, steps),
        clock_values(steps.clocks, cell.nodes),
        steadiness,
        generation_values(cell, steps, (None, no_power), []),
    )
    return values, step_rows(cell, steps, None, no_power, no_power, {})


def _whole(paths: RunPaths, cell: Cell, steps: Steps) -> _Parts:
    """Reduce a completed run to all its measures, over its measured steps."""
    users = _users_of_gpus(paths, steps)
    used = {node: list(gpus) for node, gpus in users.items()}
    recordings = read_recordings(paths, used)
    unwatched: Why = next(iter(recordings.unwatched.values()), "")
    steadiness = steady_state(cell, steps, recordings, unwatched)
    ends = steps.measured.group_by("step").agg(pl.col("ended_unix_s").max()).sort("step")
    counted = counted_shares(recordings, steps.window, ends["ended_unix_s"].to_list())
    nodes = _nodes(paths, cell, steps, recordings, users, counted)
    of_steps, of_sensors = step_values(cell, steps), sensor_values(nodes)
    energy = of_sensors["energy_j"]
    return _Parts(
        values=merged(
            of_steps,
            clock_values(steps.clocks, cell.nodes),
            steadiness,
            of_sensors,
            power_values(cell, steps, of_steps, energy, nodes),
            generation_values(cell, steps, energy, nodes),
            {
                "energy_systematic_share": systematic_share(energy, steps.window.duration_s, nodes),
                "cool_down_s": cool_down_s(paths, cell),
                "power_peak_sensor": peak_sensor(list(recordings.nodes.values()), nodes),
            },
        ),
        gpus=[row for node in nodes for row in node.gpus],
        unused_gpus=[row for node in nodes for row in node.unused],
        nodes=[node.row for node in nodes],
        steps=step_rows(
            cell, steps, recordings, unwatched, gpu_without_sensor(nodes) or "", counted
        ),
        series=series_rows(cell.hardware, steps, recordings),
    )


def _nodes(
    paths: RunPaths,
    cell: Cell,
    steps: Steps,
    recordings: Recordings,
    users: Mapping[str, Mapping[int, int]],
    counted: Mapping[int, Counted],
) -> list[Node]:
    """The run's nodes in the order of their names, including those without telemetry."""
    ranks = {(node, gpu): rank for node, gpus in users.items() for gpu, rank in gpus.items()}
    by_ranks = {
        place: merged(links, counts_of_rank(steps, steps.ranks[ranks[place]]))
        for place, links in link_values(paths, ranks, steps).items()
    }
    nodes = reduce_nodes(
        recordings,
        cell.hardware,
        steps.window,
        before_training(paths, steps),
        cell.telemetry.idle_baseline_s,
        steps.phases,
        by_ranks,
        counted,
    )
    nodes += [
        unwatched_node(node, list(users[node]), cell.hardware, reason)
        for node, reason in recordings.unwatched.items()
    ]
    return sorted(nodes, key=lambda node: str(node.row["node"]))


def before_training(paths: RunPaths, steps: Steps) -> Window:
    """The window from the end of the cool-down, −∞ if there was none, to the first rank's start."""
    cooled = read_if_there(paths.cool_down, CoolDown)
    begin = -math.inf if cooled is None else cooled.started_unix_s + cooled.waited_s
    return Window(begin, min(rank.started_unix_s for rank in steps.ranks))


def _described(paths: RunPaths, outcome: Outcome) -> Values:
    """What the samplers recorded: the GPUs' name, the sources, and whether they are simulated."""
    try:
        nodes = paths.sampled_nodes()
        starts = [read_record(paths.telemetry_start(node), TelemetryStart) for node in nodes]
    except RecordError as error:
        # A torn start record of a sampler also makes telemetry invalid.
        if outcome is not Outcome.TELEMETRY_INVALID:
            raise
        torn: Known = (None, Reason("record_damaged", why=_within(paths, error)))
        return dict.fromkeys(("gpu_name", "sensors", "simulated"), torn)
    sources = {start.source for start in starts}
    names = {str(gpu["name"]) for start in starts for gpu in start.gpus if gpu.get("name")}
    simulated = any(start.simulated for start in starts) if starts else None
    return {
        "sensors": known(", ".join(sorted(sources)) or None, Reason("no_sampler")),
        "gpu_name": known(", ".join(sorted(names)) or None, Reason("no_gpu_name")),
        "simulated": known(simulated, Reason("no_sampler")),
    }


def _in_time(paths: RunPaths, ended: OutcomeRecord) -> Values:
    """The run's place in the order of submission, and when it began."""
    order = read_if_there(paths.order, OrderRecord)
    why = Reason("not_submitted_here")
    return {
        "order_seed": known(order and order.seed, why),
        "order_block": known(order and order.block, why),
        "order_place": known(order and order.place, why),
        "started_unix_s": known(ended.started_unix_s, Reason("start_not_recorded")),
    }


def _within(paths: RunPaths, error: Exception) -> str:
    """An error's text with paths relative to the run's directory, so that tables do not depend on
    where they are made."""
    return str(error).replace(f"{paths.directory}/", "")


def _users_of_gpus(paths: RunPaths, steps: Steps) -> dict[str, dict[int, int]]:
    """Node → GPU, as the sampler numbers it → the rank that used it. Ranks on CPUs get the GPU
    numbers 0, 1, … of their node. Raises RecordError if two ranks name the same GPU, or one names
    an unknown GPU."""
    users: dict[str, dict[int, int]] = {}
    starts = {
        node: read_if_there(paths.telemetry_start(node), TelemetryStart)
        for node in {rank.node for rank in steps.ranks}
    }
    for rank in steps.ranks:
        gpus, start, number = users.setdefault(rank.node, {}), starts[rank.node], rank.gpu
        if rank.on_gpu and start is not None:
            number = start.number_of(rank)
            if number is None:
                raise RecordError(
                    f"{paths.rank(rank.rank)}: the rank trained on {rank.gpu_identity}, which is "
                    f"none of the GPUs that {paths.telemetry_start(rank.node)} lists"
                )
        gpu = len(gpus) if number is None else number
        if gpu in gpus:
            raise RecordError(
                f"{paths.steps}: ranks {gpus[gpu]} and {rank.rank} on node {rank.node} name the "
                f"same GPU, {gpu}"
            )
        gpus[gpu] = rank.rank
    return {node: dict(sorted(gpus.items())) for node, gpus in users.items()}
