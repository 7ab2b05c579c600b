"""Reduces a run's directory to ``summary.json``: its row of runs and its rows of GPUs and overhead.

Only the measured window counts (:class:`~workflow_lib.analysis.steps.Steps`), from the onset of the
steady state on. A measure that cannot be had is null, and ``missing_reasons`` says why; a total
over GPUs is null as soon as one of them is missing, because a sum that skips a GPU makes a run look
more efficient than it was.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from workflow_lib import results
from workflow_lib.analysis.generation import add_generation
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.nodes import reduce_node, unwatched_node
from workflow_lib.analysis.overhead import overhead_rows
from workflow_lib.analysis.power import add_power, add_temperatures, cool_down_s
from workflow_lib.analysis.recordings import Recording, read_recording
from workflow_lib.analysis.run_row import RunRow
from workflow_lib.analysis.steady_state import add_steady_state
from workflow_lib.analysis.steps import Steps, read_steps
from workflow_lib.records import (
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
    """Write ``summary.json`` of the run in ``directory``, which is ``<cell>/run<k>``.

    Raises FileNotFoundError or RecordError where the run has not ended, or its files are damaged.
    """
    paths = RunPaths(directory)
    write_json(paths.summary, summarise(paths, results.run_number(directory)))


def summarise(paths: RunPaths, run: int) -> dict[str, Any]:
    """``{"run": …, "gpus": …, "overhead": …}`` of an ended run: a row of RUNS, rows of GPUS and of
    OVERHEAD.

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
    otherwise = f"the run ended as {ended.outcome.value}"
    if ended.outcome is Outcome.COMPLETED:
        steps = read_steps(paths, cell)
        if cell.telemetry.interleaved_rates_hz:
            otherwise = _TURNS
            _add_training(row, steps, otherwise)
            row.set("cool_down_s", *cool_down_s(paths, cell))
            nodes = sorted({rank.node for rank in steps.ranks})
            overhead = overhead_rows(paths, cell, nodes, steps.measured, _simulated(paths))
        else:
            otherwise = "not computed"
            gpus = _add_everything(row, paths, steps)
    elif ended.outcome is Outcome.TELEMETRY_INVALID:
        otherwise = f"telemetry is invalid: {ended.cause}"
        try:
            _add_training(row, read_steps(paths, cell), otherwise)
        except (FileNotFoundError, RecordError) as error:
            # Telemetry is invalid, too, where a rank's record is torn or not there.
            otherwise = f"{otherwise}; and the steps cannot be read: {error}"
    return {
        "run": row.whole(otherwise),
        "gpus": [{**identity, **gpu} for gpu in gpus],
        "overhead": [{**identity, **rate} for rate in overhead],
    }


def _add_training(row: RunRow, steps: Steps, no_power: str) -> None:
    """Set what the steps tell by themselves; ``no_power`` is why there is no more."""
    row.add_steps(steps)
    row.add_flops(steps)
    add_steady_state(row, steps, {}, no_power)
    row.set("energy_j", None, no_power)
    if steps.phases:
        add_generation(row, steps, [])
    row.clear_inapplicable()


def _add_everything(row: RunRow, paths: RunPaths, steps: Steps) -> list[dict[str, Any]]:
    """Set all measures, over the steady part of the measured steps; returns the rows of GPUS."""
    used = _used_gpus(paths, steps)
    recordings = {node: read_recording(paths, node) for node in sorted(used)}
    watched = {node: each for node, each in recordings.items() if isinstance(each, Recording)}
    unwatched = next((each for each in recordings.values() if isinstance(each, str)), "")
    steps = add_steady_state(
        row, steps, {node: (each, used[node]) for node, each in watched.items()}, unwatched
    )
    before = _before_training(paths, steps)
    nodes = [
        unwatched_node(node, used[node], row.cell.hardware, each)
        if isinstance(each, str)
        else reduce_node(
            each,
            used[node],
            row.cell.hardware,
            steps.window,
            before,
            row.cell.telemetry.idle_baseline_s,
            steps.phases,
        )
        for node, each in recordings.items()
    ]
    gpus = [gpu for node in nodes for gpu in node.rows]
    row.add_steps(steps)
    row.add_flops(steps)
    add_power(row, paths, steps, nodes, [each.start.source for each in watched.values()])
    add_temperatures(row, gpus)
    if steps.phases:
        add_generation(row, steps, nodes)
    row.clear_inapplicable()
    return gpus


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
        row.describe(_gpu_name(paths), _simulated(paths))
    except RecordError as error:
        # What the sampler began with being torn is one way for telemetry to be invalid.
        if row.values["outcome"] != Outcome.TELEMETRY_INVALID.value:
            raise
        row.set("gpu_name", None, str(error))
        row.set("simulated", None, str(error))


def _gpu_name(paths: RunPaths) -> str | None:
    names = {str(gpu["name"]) for start in _starts(paths) for gpu in start.gpus if gpu.get("name")}
    return ", ".join(sorted(names)) or None


def _simulated(paths: RunPaths) -> bool | None:
    starts = _starts(paths)
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
