"""Other load on the nodes of runs: GPUs that no rank used, and other jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workflow_lib.report.cells import Row, completed
from workflow_lib.report.numbers import significant
from workflow_lib.words import counted


def unused_gpus(rows: Iterable[Row], labels: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each run and node with GPUs that no rank used, and their power. ``rows`` are those
    of UNUSED_GPUS, ``labels`` maps cells to labels."""
    found: dict[tuple[str, int, str], list[str]] = {}
    for row in rows:
        power = row["power_mean_w"]
        told = "power unknown" if power is None else f"{significant(power)} W"
        if not row["watched"]:
            told += "; not part of the job, read once before training"
        key = row["cell"], row["run"], row["node"]
        found.setdefault(key, []).append(f"GPU {row['gpu']} ({told})")
    return tuple(
        f"{labels[cell]}, run {run}, {node}: {', '.join(gpus)}"
        for (cell, run, node), gpus in found.items()
    )


def shared_nodes(runs: Iterable[Row], labels: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each run on whose nodes other jobs were seen, with their largest number."""
    return tuple(
        f"{labels[run['cell']]}, run {run['run']}: "
        f"up to {counted(round(run['other_jobs_peak']), 'other job')} on a node"
        for run in runs
        if completed(run) and run["other_jobs_peak"]
    )
