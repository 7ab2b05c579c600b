"""Reduces a run's directory to ``summary.json``: its row of runs and its rows of GPUs.

Only the measured window counts (:class:`~workflow_lib.analysis.steps.Steps`). A measure that cannot
be had is null, and ``missing_reasons`` says why; a total over GPUs is null as soon as one of them
is missing, because a sum that skips a GPU makes a run look more efficient than it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workflow_lib import results
from workflow_lib.analysis.generation import add_generation
from workflow_lib.analysis.nodes import Node, reduce_node
from workflow_lib.analysis.run_row import RunRow
from workflow_lib.analysis.steps import Steps, read_steps
from workflow_lib.records import (
    Cell,
    Outcome,
    RecordError,
    RunPaths,
    TelemetryStart,
    read_outcome,
    read_record,
    write_json,
)


def reduce_run(directory: Path) -> None:
    """Write ``summary.json`` of the run in ``directory``, which is ``<cell>/run<k>``.

    Raises FileNotFoundError or RecordError where the run has not ended, or its files are damaged.
    """
    paths = RunPaths(directory)
    write_json(paths.summary, summarise(paths, results.run_number(directory)))


def summarise(paths: RunPaths, run: int) -> dict[str, Any]:
    """``{"run": a row of RUNS, "gpus": rows of GPUS}`` of an ended run."""
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
    if ended.outcome is not Outcome.COMPLETED:
        row.describe(_gpu_name(paths), _simulated(paths))
        return {"run": row.whole(f"the run ended as {ended.outcome.value}"), "gpus": []}
    steps = read_steps(paths, cell)
    nodes = _reduce_nodes(paths, cell, steps)
    gpus = [gpu for node in nodes for gpu in node.rows]
    row.describe(_gpu_name(paths), _simulated(paths))
    row.add_steps(steps)
    row.add_flops(steps)
    row.add_power(steps, nodes, gpus)
    row.add_temperatures(gpus)
    if steps.phases:
        add_generation(row, steps, nodes)
    row.clear_inapplicable()
    identity = {"cell": cell.id, "run": run}
    return {"run": row.whole("not computed"), "gpus": [{**identity, **gpu} for gpu in gpus]}


def _starts(paths: RunPaths) -> list[TelemetryStart]:
    return [
        read_record(paths.telemetry_start(node), TelemetryStart) for node in paths.sampled_nodes()
    ]


def _gpu_name(paths: RunPaths) -> str | None:
    names = {str(gpu["name"]) for start in _starts(paths) for gpu in start.gpus if gpu.get("name")}
    return ", ".join(sorted(names)) or None


def _simulated(paths: RunPaths) -> bool | None:
    starts = _starts(paths)
    return any(start.simulated for start in starts) if starts else None


def _reduce_nodes(paths: RunPaths, cell: Cell, steps: Steps) -> list[Node]:
    """Each node's GPUs that a rank used; on CPUs, as many GPUs of the node as it had ranks."""
    used: dict[str, list[int]] = {}
    for rank in steps.ranks:
        gpus = used.setdefault(rank.node, [])
        gpus.append(len(gpus) if rank.gpu is None else rank.gpu)
    for node, gpus in used.items():
        if len(set(gpus)) < len(gpus):
            raise RecordError(f"{paths.steps}: two ranks on node {node} name the same GPU: {gpus}")
    training_started_unix_s = min(rank.started_unix_s for rank in steps.ranks)
    return [
        reduce_node(
            paths,
            node,
            sorted(used[node]),
            cell.hardware,
            steps.window,
            training_started_unix_s,
            cell.telemetry.idle_baseline_s,
            steps.phases,
        )
        for node in sorted(used)
    ]
