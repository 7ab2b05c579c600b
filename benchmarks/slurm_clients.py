"""What this workflow costs a cluster and its login node, beside Snakemake's executor plugin.

On the throwaway Slurm (``make slurm-cluster`` first), one client after the other:

``flight``      Slurm commands a minute, memory and CPU time with 1, 50 and 400 runs in flight.
                Their jobs wait in a partition that is down, so that a small machine can hold 400:
                submitted and not ended, they are in flight, and both clients ask about all of them.
``dead_jobs``   from the end of a job that was killed without a last word, or that failed, until
                Snakemake says so. Jobs of both clients idle on emulated nodes.
``allocation``  GPU-seconds of an allocation outside of training and baseline, for a run of one GPU.

The plugin checks as it does by default: 40 s after its start, then every 20, 30, … up to 180 s; and
40 s after it saw a job end. Slurm's own times are whole seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measuring.marked_processes import of_job
from benchmarks.measuring.parts import Log, run_parts
from benchmarks.measuring.slurm_commands import CommandLog
from benchmarks.measuring.slurm_studies import (
    LONG_S,
    Client,
    Plugin,
    Triptych,
    is_batch_script,
    is_training,
    stand_in,
    training,
)
from benchmarks.measuring.workflows import Workflow, failures
from tests.slurm.cluster import Cluster, default_directory

CLIENTS = ("Triptych", "executor plugin")
PARTITION = "politeness"
NODES = "h200-1,h200-2,h100-1,h100-2"
#: after the last submission, until what a client does has settled
SETTLE_S = 10.0
#: how long all jobs may take until they are in the queue, or have begun
PATIENCE_S = 240.0
#: of a run whose allocation is accounted for
BASELINE_S = 5.0
SEED = 5


class Bench:
    """The cluster, and what is asked of this run of the benchmark."""

    def __init__(self, arguments: argparse.Namespace, log: Log) -> None:
        self.cluster = Cluster(default_directory())
        self.arguments = arguments
        self.log = log
        self.figures: list[dict[str, Any]] = []
        if arguments.output is not None and arguments.output.exists():
            # Parts and clients may be measured one at a time: tables show all that the file holds.
            lines = arguments.output.read_text(encoding="utf-8").splitlines()
            self.figures += [
                figure for line in lines if "error" not in (figure := json.loads(line))
            ]

    def figure(self, part: str, **values: Any) -> None:
        """Keep a figure for the tables, and in the file."""
        self.figures.append({"part": part, **values})
        self.log.row(part, **values)

    def environment(self, place: Path) -> dict[str, str]:
        """Of a client: this cluster's, and a temporary directory of its own."""
        (place / "tmp").mkdir(mode=0o700)
        return {
            **self.cluster.environment,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(place / "tmp"),
            "XDG_CACHE_HOME": str(place / "cache"),
            "OMP_NUM_THREADS": "1",
        }

    @contextmanager
    def partition(self, state: str) -> Iterator[None]:
        """A partition of our own, in which nothing else runs; its jobs are cancelled at the end."""
        self._remove_partition()  # of a benchmark that was killed
        definition = (f"PartitionName={PARTITION}", f"Nodes={NODES}", f"State={state}")
        self.cluster.run("scontrol", "create", *definition)
        try:
            yield
        finally:
            self._remove_partition()

    def _remove_partition(self) -> None:
        named = f"PartitionName={PARTITION}"
        if self.cluster.run("scontrol", "show", "partition", PARTITION, check=False).returncode:
            return
        self.cluster.run("scancel", f"--partition={PARTITION}")
        _until(lambda: not self.queue(), "the jobs to be cancelled", 60.0)
        self.cluster.run("scontrol", "delete", named)

    def queue(self) -> list[str]:
        """Jobs that were submitted and have not ended."""
        return self.cluster.run(
            "squeue", "--noheader", f"--partition={PARTITION}", "--format=%A"
        ).stdout.split()

    def times(self, job: str) -> tuple[float, float]:
        """When a job's allocation began and ended (Unix s), as the accounting has it."""

        def told() -> list[str]:
            query = ("sacct", "-X", "-n", "-P", "-j", job, "--format=Start,End")
            return self.cluster.run(*query).stdout.strip().split("|")

        _until(lambda: "Unknown" not in told(), f"the end of job {job} in the accounting", 30.0)
        start, end = (datetime.fromisoformat(word).timestamp() for word in told())
        return start, end


def _until(
    condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S, every_s: float = 0.5
) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {limit_s:.0f} s in vain for {what}")
        time.sleep(every_s)


@contextmanager
def _started(bench: Bench, client: Client, environment: dict[str, str]) -> Iterator[Workflow]:
    workflow = Workflow(client.command(), client.directory(), environment)
    try:
        yield workflow
    except RuntimeError:
        bench.log.say(workflow.text()[-3000:])
        raise
    finally:
        workflow.close()


def _make(name: str, place: Path, runs: int, baseline_s: float) -> Client:
    if name == "Triptych":
        return Triptych(place / "study", runs, PARTITION, baseline_s)
    return Plugin(place / "study", runs, PARTITION, stand_in())


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
    client = _make(name, place, runs, LONG_S)
    environment = commands.environment(bench.environment(place))
    with bench.partition("DOWN"), _started(bench, client, environment) as workflow:
        started = time.time()
        _until(lambda: workflow.runs() and len(bench.queue()) == runs, f"{runs} jobs in the queue")
        submitted = time.time()
        time.sleep(SETTLE_S)
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
        submitted_after_s=submitted - started,
        commands_to_submit=commands.between(started, submitted),
        window_s=end - begin,
        commands=count,
        commands_per_min=count.total() / minutes,
        processes=after.processes,
        pss_mb=after.pss_bytes / 1e6,
        cpu_s_per_min=(after.cpu_s - before.cpu_s) / minutes,
    )
    bench.log.say(f"{runs} runs, {name}: all in the queue after {submitted - started:.0f} s")


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
    chance = random.Random(SEED)
    chance.shuffle(order)
    client = _make(name, place, runs, LONG_S)
    with (
        bench.partition("UP"),
        _started(bench, client, bench.environment(place)) as workflow,
    ):
        _until(
            lambda: workflow.runs() and all(client.has_begun(run) for run, _ in order),
            "all jobs to begin",
        )
        jobs = {}
        for run, how in order:
            time.sleep(chance.uniform(0.5, 1.5) * bench.arguments.apart_s)
            jobs[run] = _end_job(bench, client, run, how)
        _until(lambda: len(failures(workflow.lines)) == runs, "Snakemake to say so of all")
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
    ours = Triptych(place / "study", 1, PARTITION, BASELINE_S)
    cell = ours.paths(1).cell
    client: Client = ours
    if name != ours.name:
        client = Plugin(place / "plugin", 1, PARTITION, training(cell))
    with (
        bench.partition("UP"),
        _started(bench, client, bench.environment(place)) as workflow,
    ):
        _until(lambda: bench.queue(), "a job in the queue", every_s=0.1)
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
    training_s, baseline_s = seen[-1] - seen[0], BASELINE_S if client is ours else 0.0
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


PARTS = {"flight": flight, "dead_jobs": dead_jobs, "allocation": allocation}


def main() -> int:
    """Print the tables. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 50, 400], help="in flight")
    parser.add_argument("--window-s", type=float, default=120.0, help="in which is counted")
    parser.add_argument("--deaths", type=int, default=10, help="jobs of each kind that are ended")
    parser.add_argument("--apart-s", type=float, default=8.0, help="between them, on average")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each client for allocation")
    parser.add_argument(
        "--output", type=Path, help="append every figure to this file; tables show all it holds"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    log = Log(arguments.output)
    bench = Bench(arguments, log)
    if not bench.cluster.is_up():
        print("slurm_clients: needs a running Slurm; `make slurm-cluster` starts one (skipped)")
        return 0
    parts = {name: partial(part, bench) for name, part in PARTS.items()}
    return run_parts(parts, arguments.parts, log)


if __name__ == "__main__":
    sys.exit(main())
