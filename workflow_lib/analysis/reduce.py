"""Reduces a run's directory to ``summary.json``, its row of runs and its rows of GPUs and overhead,
and to ``steps.parquet`` and ``series.parquet``: its steps, and its GPUs over time.

Only the measured window counts (:class:`~workflow_lib.analysis.steps.Steps`), from the onset of the
steady state on. A measure that cannot be had is null, and ``missing_reasons`` says why; a total
over GPUs is null as soon as one of them is missing, because a sum that skips a GPU makes a run look
more efficient than it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from workflow_lib import results
from workflow_lib.analysis.generation import add_generation
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.nodes import reduce_nodes, unwatched_node
from workflow_lib.analysis.overhead import overhead_rows
from workflow_lib.analysis.power import add_power, add_temperatures, cool_down_s, gpu_without_sensor
from workflow_lib.analysis.recordings import read_recordings
from workflow_lib.analysis.run_row import RunRow
from workflow_lib.analysis.series import series_rows
from workflow_lib.analysis.steady_state import add_steady_state
from workflow_lib.analysis.step_times import step_rows
from workflow_lib.analysis.steps import Steps, read_steps
from workflow_lib.analysis.tables import schema, table, write_table
from workflow_lib.records import (
    SERIES,
    STEP_TIMES,
    Cell,
    CoolDown,
    Outcome,
    RecordError,
    RunPaths,
    TelemetryStart,
    read_if_there,
    read_outcome,
    read_record,
    write_json,
)

_TURNS = "telemetry took turns at several rates"


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
    # The summary stands for all three.
    paths.summary.unlink(missing_ok=True)
    reduced = reduced_run(paths, results.run_number(directory))
    write_table(reduced.steps, paths.step_times)
    write_table(reduced.series, paths.series)
    write_json(paths.summary, reduced.summary)


@dataclass(frozen=True)
class Reduced:
    """What a run's raw files come to."""

    #: ``{"run": …, "gpus": …, "overhead": …}``: a row of RUNS, rows of GPUS and of OVERHEAD
    summary: dict[str, Any]
    #: of STEP_TIMES; without rows where steps cannot be read
    steps: pl.DataFrame
    #: of SERIES; without rows where nothing was watched, or not throughout
    series: pl.DataFrame


def reduced_run(paths: RunPaths, run: int) -> Reduced:
    """Reduce an ended run.

    A run whose telemetry is invalid keeps what its steps tell: training went well. Raises
    FileNotFoundError or RecordError as :func:`reduce_run` does.
    """
    if not paths.cell.is_file():
        raise FileNotFoundError(f"{paths.cell}: missing; expected the directory of a run")
    cell = read_record(paths.cell, Cell)
    ended = read_outcome(paths)
    if ended is None:
        raise FileNotFoundError(
            f"{paths.directory}: the run has neither {paths.outcome.name} nor "
            f"{paths.failure.name}: it has not ended, or nobody has classified its end yet"
        )
    row = RunRow(cell, run, ended)
    _describe(row, paths)
    identity = {"cell": cell.id, "run": run}
    gpus: list[dict[str, Any]] = []
    overhead: list[dict[str, Any]] = []
    trained: list[dict[str, Any]] = []
    series = pl.DataFrame(schema=schema(SERIES))
    otherwise = f"the run ended as {ended.outcome.value}"
    if ended.outcome is Outcome.COMPLETED:
        steps = read_steps(paths, cell)
        if cell.telemetry.interleaved_rates_hz:
            otherwise = _TURNS
            trained = _add_training(row, steps, otherwise)
            row.set("cool_down_s", *cool_down_s(paths, cell))
            nodes = sorted({rank.node for rank in steps.ranks})
            overhead = overhead_rows(paths, cell, nodes, steps.measured, row.values["simulated"])
        else:
            otherwise = "not computed"
            gpus, trained, series = _add_everything(row, paths, steps)
    elif ended.outcome is Outcome.TELEMETRY_INVALID:
        otherwise = f"telemetry is invalid: {ended.cause}"
        try:
            trained = _add_training(row, read_steps(paths, cell), otherwise)
        except (FileNotFoundError, RecordError) as error:
            # Telemetry is invalid, too, where a rank's record is torn or not there.
            otherwise = f"{otherwise}; and the steps cannot be read: {_within(paths, error)}"
    summary = {
        "run": row.whole(otherwise),
        "gpus": [{**identity, **gpu} for gpu in gpus],
        "overhead": [{**identity, **rate} for rate in overhead],
    }
    step_times = table([{**identity, **step} for step in trained], STEP_TIMES)
    series = series.with_columns(cell=pl.lit(cell.id), run=pl.lit(run, pl.Int64))
    return Reduced(summary, step_times, series.select(list(schema(SERIES))))


def _add_training(row: RunRow, steps: Steps, no_power: str) -> list[dict[str, Any]]:
    """Set what the steps tell by themselves, and return their rows of STEP_TIMES; ``no_power`` is
    why there is no more."""
    row.add_steps(steps)
    row.add_flops(steps)
    add_steady_state(row, steps, None, no_power)
    row.set("energy_j", None, no_power)
    if steps.phases:
        add_generation(row, steps, [])
    row.clear_inapplicable()
    return step_rows(row.cell, steps, None, no_power, no_power)


def _add_everything(
    row: RunRow, paths: RunPaths, steps: Steps
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], pl.DataFrame]:
    """Set all measures, over the steady part of the measured steps; returns the rows of GPUS, of
    STEP_TIMES and of SERIES."""
    used = _used_gpus(paths, steps)
    recordings = read_recordings(paths, used)
    unwatched = next(iter(recordings.unwatched.values()), "")
    steps = add_steady_state(row, steps, recordings, unwatched)
    hardware = row.cell.hardware
    nodes = reduce_nodes(
        recordings,
        hardware,
        steps.window,
        _before_training(paths, steps),
        row.cell.telemetry.idle_baseline_s,
        steps.phases,
    )
    nodes += [
        unwatched_node(node, used[node], hardware, reason)
        for node, reason in recordings.unwatched.items()
    ]
    nodes.sort(key=lambda node: str(node.rows[0]["node"]))
    gpus = [gpu for node in nodes for gpu in node.rows]
    row.add_steps(steps)
    row.add_flops(steps)
    add_power(row, paths, steps, nodes, [each.start.source for each in recordings.nodes.values()])
    add_temperatures(row, gpus)
    if steps.phases:
        add_generation(row, steps, nodes)
    row.clear_inapplicable()
    return (
        gpus,
        step_rows(row.cell, steps, recordings, unwatched, gpu_without_sensor(nodes) or ""),
        series_rows(hardware, steps, recordings),
    )


def _before_training(paths: RunPaths, steps: Steps) -> Window:
    """From the end of the cool-down, −∞ where there was none, to the first rank's start."""
    cooled = read_if_there(paths.cool_down, CoolDown)
    begin = -math.inf if cooled is None else cooled.started_unix_s + cooled.waited_s
    return Window(begin, min(rank.started_unix_s for rank in steps.ranks))


def _starts(paths: RunPaths) -> list[TelemetryStart]:
    return [
        read_record(paths.telemetry_start(node), TelemetryStart) for node in paths.sampled_nodes()
    ]


def _describe(row: RunRow, paths: RunPaths) -> None:
    try:
        starts = _starts(paths)
        row.describe(_gpu_name(starts), _simulated(starts))
    except RecordError as error:
        # What the sampler began with being torn is one way for telemetry to be invalid.
        if row.values["outcome"] != Outcome.TELEMETRY_INVALID.value:
            raise
        row.set("gpu_name", None, _within(paths, error))
        row.set("simulated", None, _within(paths, error))


def _within(paths: RunPaths, error: Exception) -> str:
    """An error's text with its files named from the run's directory on: tables that are made
    elsewhere are the same.
    """
    return str(error).replace(f"{paths.directory}/", "")


def _gpu_name(starts: Sequence[TelemetryStart]) -> str | None:
    names = {str(gpu["name"]) for start in starts for gpu in start.gpus if gpu.get("name")}
    return ", ".join(sorted(names)) or None


def _simulated(starts: Sequence[TelemetryStart]) -> bool | None:
    return any(start.simulated for start in starts) if starts else None


def _used_gpus(paths: RunPaths, steps: Steps) -> dict[str, list[int]]:
    """Each node's GPUs that a rank used; on CPUs, as many GPUs of the node as it had ranks."""
    used: dict[str, list[int]] = {}
    for rank in steps.ranks:
        gpus = used.setdefault(rank.node, [])
        gpus.append(len(gpus) if rank.gpu is None else rank.gpu)
    for node, gpus in used.items():
        if len(set(gpus)) < len(gpus):
            raise RecordError(f"{paths.steps}: two ranks on node {node} name the same GPU: {gpus}")
    return {node: sorted(gpus) for node, gpus in used.items()}
