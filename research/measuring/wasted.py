"""What a run that cannot become a result any more still costs: from a fault to the end of its
allocation, in GPU-seconds of a run of one GPU. A part of slurm_clients.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from research.measuring.slurm_bench import CLIENTS, PARTITION, Bench, started, until
from research.measuring.slurm_processes import of_job
from research.measuring.slurm_studies import Client, Plugin, Triptych, is_training, training
from workflow_lib import records

#: steps that nobody waits for the end of
_STEPS = 1_000_000
#: of the plugin's jobs, which nothing else ends; 120 min elsewhere
_PLUGIN_LIMIT_MIN = 5
_PATIENCE_S = 600.0


def _is_sampler(arguments: Sequence[str]) -> bool:
    return "workflow_lib.telemetry" in arguments and Path(arguments[0]).name.startswith("python")


def _is_rank(arguments: Sequence[str]) -> bool:
    return (
        is_training(arguments)
        and Path(arguments[0]).name.startswith("python")
        and "workflow_lib.launch.job.rank" not in arguments
    )


def _signal(job: str, is_meant: Callable[[Sequence[str]], bool], number: int) -> None:
    (process,) = (pid for pid, arguments in of_job(job).items() if is_meant(arguments))
    os.kill(process, number)


def _sampler_killed(client: Client, run: int) -> None:
    _signal(client.job(run), _is_sampler, signal.SIGKILL)


def _sampler_hangs(client: Client, run: int) -> None:
    _signal(client.job(run), _is_sampler, signal.SIGSTOP)


def _rank_hangs(client: Client, run: int) -> None:
    _signal(client.job(run), _is_rank, signal.SIGSTOP)


def _gpu_fails(client: Client, run: int) -> None:
    """Xid 79, as the sampler would write it, and a rank that then waits for its GPU for ever."""
    assert isinstance(client, Triptych)
    paths = client.paths(run)
    (node,) = paths.sampled_nodes()
    names = ",".join(column.name for column in records.GPU_EVENTS)
    paths.gpu_events(node).write_text(f"{names}\n{time.time():.6f},0,xid,79\n", encoding="ascii")
    _rank_hangs(client, run)


_FAULTS: Mapping[str, Callable[[Client, int], None]] = {
    "sampler killed": _sampler_killed,
    "sampler hangs": _sampler_hangs,
    "GPU with Xid 79": _gpu_fails,
    "rank hangs": _rank_hangs,
}


def wasted(bench: Bench) -> None:
    """Every fault in runs of Triptych; in the plugin's, without telemetry, a rank that hangs."""
    for _ in range(bench.arguments.faults):
        for name in bench.arguments.clients:
            with tempfile.TemporaryDirectory(prefix="polite") as directory:
                _wasted(bench, name, Path(directory))
    columns = ("fault", "client", "runs", "median GPU-s", "shortest", "longest")
    rows = []
    for fault in _FAULTS:
        for name in CLIENTS:
            costs_s = [
                figure["wasted_gpu_s"]
                for figure in bench.figures
                if figure["part"] == "wasted"
                and (figure["fault"], figure["client"]) == (fault, name)
            ]
            if costs_s:
                told = (statistics.median(costs_s), min(costs_s), max(costs_s))
                rows.append((fault, name, str(len(costs_s)), *(f"{each:.0f}" for each in told)))
    bench.log.table(columns, rows)


def _wasted(bench: Bench, name: str, place: Path) -> None:
    ours = Triptych(place / "study", len(_FAULTS), PARTITION, 0.0, measured_steps=_STEPS)
    client: Client = ours
    faults = dict(enumerate(_FAULTS, start=1))
    if name != ours.name:
        command = "mkdir -p begun; echo $SLURM_JOB_ID > begun/{wildcards.run}; "
        command += training(ours.paths(1).cell)
        faults = {1: "rank hangs"}
        client = Plugin(place / "plugin", 1, PARTITION, command, _PLUGIN_LIMIT_MIN)
    with (
        bench.partition("UP"),
        started(bench, client, bench.environment(place)) as workflow,
    ):
        # The plugin's training writes its steps where the cell lies.
        until(
            lambda: workflow.runs() and all(_has_stepped(ours, run) for run in faults),
            "steps of all runs",
        )
        jobs, began = {}, {}
        for run, fault in faults.items():
            jobs[run] = client.job(run)
            began[run] = time.time()
            _FAULTS[fault](client, run)
        # Where a GPU failed, the run has another job by then.
        until(
            lambda: not set(jobs.values()) & set(bench.queue()),
            "the ends of the jobs",
            _PATIENCE_S,
        )
        for run, fault in faults.items():
            _, ended_s = bench.times(jobs[run])
            bench.figure("wasted", client=name, fault=fault, wasted_gpu_s=ended_s - began[run])


def _has_stepped(ours: Triptych, run: int) -> bool:
    steps = ours.paths(run).rank_steps(0)
    return steps.exists() and steps.read_bytes().count(b"\n") > 3
