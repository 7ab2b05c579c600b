"""What a client of Slurm costs with runs in flight, how late it says that a job has died, and how
much of an allocation it leaves to training: the parts of slurm_clients.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.measuring.slurm_bench import (
    CLIENTS,
    PARTITION,
    PATIENCE_S,
    Bench,
    make_client,
    started,
    until,
)
from research.measuring.slurm_processes import CommandLog, failures, of_job
from research.measuring.slurm_studies import (
    LONG_S,
    Client,
    Plugin,
    Triptych,
    is_batch_script,
    is_training,
    training,
)

#: after the last submission, until what a client does has settled
_SETTLE_S = 10.0
#: of a run whose allocation is accounted for
_BASELINE_S = 5.0
_SEED = 5


# ------------------------------------------------------------------------------------- in flight


def flight(bench: Bench) -> None:
    """Every client with every number of runs in flight."""
    for runs in bench.arguments.runs:
        for name in bench.arguments.clients:
            with tempfile.TemporaryDirectory(prefix="polite") as directory:
                _in_flight(bench, name, runs, Path(directory))
    columns = ("in flight", "client", "commands/min", "per command", "MB", "MB a run", "CPU s/min")
    rows = []
    measured = [figure for figure in bench.figures if figure["part"] == "flight"]
    for figure in sorted(measured, key=lambda figure: (figure["runs"], figure["client"])):
        peer = _peer(bench, figure)
        rows.append(
            (
                str(figure["runs"]),
                figure["client"],
                _with_ratio(figure, peer, "commands_per_min", "{:.1f}"),
                ", ".join(f"{name} {count}" for name, count in figure["commands"].items()),
                _with_ratio(figure, peer, "pss_mb", "{:.0f}"),
                f"{figure['pss_mb'] / figure['runs']:.2f}",
                f"{figure['cpu_s_per_min']:.1f}",
            )
        )
    bench.log.table(columns, rows)


def _in_flight(bench: Bench, name: str, runs: int, place: Path) -> None:
    commands = CommandLog(place / "commands")
    client = make_client(name, place, runs, LONG_S)
    environment = commands.environment(bench.environment(place))
    with bench.partition("DOWN"), started(bench, client, environment) as workflow:
        began = time.time()
        until(lambda: workflow.runs() and len(bench.queue()) == runs, f"{runs} jobs in the queue")
        submitted = time.time()
        time.sleep(_SETTLE_S)
        begin, before = time.time(), workflow.cost()
        time.sleep(bench.arguments.window_s)
        workflow.runs()
        end, after = time.time(), workflow.cost()
        if len(bench.queue()) != runs:
            raise RuntimeError(f"{len(bench.queue())} of {runs} jobs are in the queue")
    count = commands.between(begin, end)
    minutes = (end - begin) / 60
    bench.figure(
        "flight",
        client=name,
        runs=runs,
        submitted_after_s=submitted - began,
        commands_to_submit=commands.between(began, submitted),
        window_s=end - begin,
        commands=count,
        commands_per_min=count.total() / minutes,
        processes=after.processes,
        pss_mb=after.pss_bytes / 1e6,
        most_open_files=after.most_open_files,
        cpu_s_per_min=(after.cpu_s - before.cpu_s) / minutes,
    )
    bench.log.say(f"{runs} runs, {name}: all in the queue after {submitted - began:.0f} s")


# ------------------------------------------------------------------------------------- dead jobs


def dead_jobs(bench: Bench) -> None:
    """From a job's end until Snakemake says so, both clients with the same kills."""
    for name in bench.arguments.clients:
        with tempfile.TemporaryDirectory(prefix="polite") as directory:
            _dead_jobs(bench, name, Path(directory))
    columns = ("how it ended", "client", "jobs", "median s", "shortest s", "longest s")
    rows = []
    for how in ("killed", "failed"):
        for name in CLIENTS:
            delays_s = [
                figure["delay_s"]
                for figure in bench.figures
                if figure["part"] == "dead_jobs"
                and (figure["how"], figure["client"]) == (how, name)
            ]
            if not delays_s:
                continue
            middle, low, high = statistics.median(delays_s), min(delays_s), max(delays_s)
            rows.append(
                (how, name, str(len(delays_s)), f"{middle:.1f}", f"{low:.1f}", f"{high:.1f}")
            )
    bench.log.table(columns, rows)


def _dead_jobs(bench: Bench, name: str, place: Path) -> None:
    runs = 2 * bench.arguments.deaths
    order = [(run, "killed" if run % 2 else "failed") for run in range(1, runs + 1)]
    chance = random.Random(_SEED)
    chance.shuffle(order)
    client = make_client(name, place, runs, LONG_S)
    with (
        bench.partition("UP"),
        started(bench, client, bench.environment(place)) as workflow,
    ):
        until(
            lambda: workflow.runs() and all(client.has_begun(run) for run, _ in order),
            "all jobs to begin",
        )
        jobs = {}
        for run, how in order:
            time.sleep(chance.uniform(0.5, 1.5) * bench.arguments.apart_s)
            jobs[run] = _end_job(bench, client, run, how)
        until(lambda: len(failures(workflow.lines)) == runs, "Snakemake to say so of all")
        said = failures(workflow.lines)
        for run, how in order:
            _, ended = bench.times(jobs[run])
            delay_s = said[client.output(run)] - ended
            bench.figure("dead_jobs", client=name, how=how, job=jobs[run], delay_s=delay_s)


def _end_job(bench: Bench, client: Client, run: int, how: str) -> str:
    """End what a run's job runs; returns the job's id.

    Killed: SIGKILL of its batch script, which can say nothing any more. Failed: SIGTERM to what it
    runs, after which both clients' jobs end as after any failure.
    """
    job = client.job(run)
    number, ends = (
        (signal.SIGKILL, is_batch_script)
        if how == "killed"
        else (signal.SIGTERM, client.fails_with)
    )
    (process,) = (pid for pid, arguments in of_job(job).items() if ends(arguments))
    os.kill(process, number)
    bench.log.say(f"{client.name}: run {run}, job {job}: {how}")
    return job


# ------------------------------------------------------------------------------------ allocation


def allocation(bench: Bench) -> None:
    """What an allocation holds besides training and baseline; a run of each client in turns."""
    for _ in range(bench.arguments.pairs):
        for name in bench.arguments.clients:
            with tempfile.TemporaryDirectory(prefix="polite") as directory:
                _allocation(bench, name, Path(directory))
    columns = ("client", "runs", "allocated s", "training s", "baseline s", "outside s", "range s")
    rows = []
    for name in CLIENTS:
        of_client = [
            figure
            for figure in bench.figures
            if figure["part"] == "allocation" and figure["client"] == name
        ]
        if not of_client:
            continue
        outside = [figure["outside_s"] for figure in of_client]
        medians = [
            f"{statistics.median(figure[key] for figure in of_client):.1f}"
            for key in ("allocated_s", "training_s", "baseline_s", "outside_s")
        ]
        rows.append(
            (name, str(len(outside)), *medians, f"{min(outside):.1f} to {max(outside):.1f}")
        )
    bench.log.table(columns, rows)


def _allocation(bench: Bench, name: str, place: Path) -> None:
    ours = Triptych(place / "study", 1, PARTITION, _BASELINE_S)
    cell = ours.paths(1).cell
    client: Client = ours
    if name != ours.name:
        client = Plugin(place / "plugin", 1, PARTITION, training(cell))
    with (
        bench.partition("UP"),
        started(bench, client, bench.environment(place)) as workflow,
    ):
        until(lambda: bench.queue(), "a job in the queue", every_s=0.1)
        (job,) = bench.queue()
        seen: list[float] = []
        while bench.queue():
            checked = time.monotonic()
            while time.monotonic() < checked + 1.0:
                if any(is_training(arguments) for arguments in of_job(job).values()):
                    seen.append(time.time())
                time.sleep(0.05)
        start, end = bench.times(job)
        if workflow.process.wait(PATIENCE_S):
            raise RuntimeError("the run failed")
    if not seen:
        raise RuntimeError("no training was seen")
    training_s, baseline_s = seen[-1] - seen[0], _BASELINE_S if client is ours else 0.0
    bench.figure(
        "allocation",
        client=name,
        allocated_s=end - start,
        training_s=training_s,
        baseline_s=baseline_s,
        outside_s=end - start - training_s - baseline_s,
        until_training_s=seen[0] - start,
        after_training_s=end - seen[-1],
    )
    bench.log.say(f"{name}: {bench.figures[-1]}")


# --------------------------------------------------------------------------------------- tables


def _with_ratio(
    figure: Mapping[str, Any], peer: Mapping[str, Any] | None, key: str, form: str
) -> str:
    """A figure, and how many times the peer's it is."""
    own = form.format(figure[key])
    if peer is None or peer is figure or not peer[key]:
        return own
    return f"{own} ({figure[key] / peer[key]:.2f}x)"


def _peer(bench: Bench, figure: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The plugin's figure beside one of ours, where it was measured too."""
    for other in bench.figures:
        alike = all(other.get(key) == figure.get(key) for key in ("part", "runs"))
        if alike and other["client"] == CLIENTS[1]:
            return other
    return None
