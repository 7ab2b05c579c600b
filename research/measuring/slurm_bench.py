"""A cluster on which clients of Slurm are measured, and what a client's workflow runs in."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.measuring.parts import Log
from research.measuring.slurm_processes import Workflow
from research.measuring.slurm_studies import Client, Plugin, Triptych, stand_in
from tests.slurm.cluster import Cluster, default_directory

CLIENTS = ("Triptych", "executor plugin")
PARTITION = "politeness"
_NODES = "h200-1,h200-2,h100-1,h100-2"
#: how long all jobs may take until they are in the queue, or have begun
PATIENCE_S = 240.0


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
        definition = (f"PartitionName={PARTITION}", f"Nodes={_NODES}", f"State={state}")
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
        until(lambda: not self.queue(), "the jobs to be cancelled", 60.0)
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

        until(lambda: "Unknown" not in told(), f"the end of job {job} in the accounting", 30.0)
        start, end = (datetime.fromisoformat(word).timestamp() for word in told())
        return start, end


def until(
    condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S, every_s: float = 0.5
) -> None:
    """Wait for a condition; raises RuntimeError, with ``what``, where it does not come."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {limit_s:.0f} s in vain for {what}")
        time.sleep(every_s)


@contextmanager
def started(bench: Bench, client: Client, environment: dict[str, str]) -> Iterator[Workflow]:
    """A client's Snakemake, of which nothing is left afterwards."""
    workflow = Workflow(client.command(), client.directory(), environment)
    try:
        yield workflow
    except RuntimeError:
        bench.log.say(workflow.text()[-3000:])
        raise
    finally:
        workflow.close()


def make_client(name: str, place: Path, runs: int, baseline_s: float) -> Client:
    """A client by its name, with a study of as many runs."""
    if name == "Triptych":
        return Triptych(place / "study", runs, PARTITION, baseline_s)
    return Plugin(place / "study", runs, PARTITION, stand_in())
