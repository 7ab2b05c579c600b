"""Every path of a run, of a sweep and of a comparison."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import sys
import zipimport
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class _Named(Protocol):
    @property
    def directory(self) -> Path: ...


@dataclass(frozen=True)
class File:
    """A file or directory below the directory of a run, sweep or comparison."""

    name: str

    def __get__(self, paths: _Named, owner: type) -> Path:
        return paths.directory / self.name


@dataclass(frozen=True)
class NodeFile:
    """A file for each node; ``{}`` stands for the node's name."""

    name: str

    def __get__(self, paths: _Named, owner: type) -> Callable[[str], Path]:
        return lambda node: paths.directory / self.name.format(node)


@dataclass(frozen=True)
class RankFile:
    """A file for each rank; ``{}`` stands for the rank's number."""

    name: str

    def __get__(self, paths: _Named, owner: type) -> Callable[[int], Path]:
        return lambda rank: paths.directory / self.name.format(rank)


@dataclass(frozen=True)
class RunPaths:
    """Every path of one run. No other module holds these names."""

    directory: Path

    cell = File("cell.json")
    measured = File("measured.json")  # in its place, of a command that was measured
    cell_checksum = File(".cell.sha256")  # of cell.json as it was rendered
    script = File("job.sh")
    job = File("job.json")
    submission = File("submission.json")
    order = File("order.json")
    environment = File("environment.json")
    ended = File("ended.json")
    stopped = File("stopped.json")  # only if the job stopped training early
    suspended = File("suspended.json")  # only if the job was suspended while it trained
    outcome = File("outcome.json")
    failure = File("failure.json")
    #: made by the reduction of a measured run: its measures, steps, and GPUs over time
    summary = File("summary.json")
    step_times = File("steps.parquet")
    series = File("series.parquet")
    reduced_checksums = File(".reduced.sha256")
    attempts = File("attempts")
    lock = File(".lock")  # held by the process that waits for the run

    logs = File("logs")
    training_log = File("logs/training.log")  # of the ranks and their launcher

    steps = File("steps")
    rank = RankFile("steps/rank{}.json")
    rank_steps = RankFile("steps/rank{}.csv")
    link_count = RankFile("steps/links-rank{}.json")
    clock = NodeFile("steps/clock-{}.json")  # only in runs of several nodes
    errors = File("errors")
    rank_error = RankFile("errors/rank{}.json")
    exits = File("exits")
    rank_exit = RankFile("exits/rank{}.json")

    #: only in a profiled run; the two tables are made from the traces
    traces = File("traces")
    trace = RankFile("traces/rank{}.json.gz")
    kernels = File("traces/kernels.parquet")
    trace_times = File("traces/traces.parquet")
    trace_checksums = File("traces/.tables.sha256")

    #: these exist only if the cell asks for a cool-down, or for limits of GPUs. Of a node's limits,
    #: ".ready" exists once they are in force, and ".failed" if setting or holding them failed
    cool_down = File("cool-down.json")
    gpu_limits = File("gpu-limits")
    node_limits = NodeFile("gpu-limits/{}.json")
    limits_ready = NodeFile("gpu-limits/{}.ready")
    limits_failed = NodeFile("gpu-limits/{}.failed")

    telemetry = File("telemetry")
    gpu_samples = NodeFile("telemetry/{}.csv")
    gpu_counters = NodeFile("telemetry/{}-counters.csv")
    power_samples = NodeFile("telemetry/{}-power.csv")
    gpu_events = NodeFile("telemetry/{}-events.csv")
    sampler_blocks = NodeFile("telemetry/{}-blocks.csv")  # only if sampling rates alternate
    host_samples = NodeFile("telemetry/{}-host.csv")
    telemetry_start = NodeFile("telemetry/{}.json")
    telemetry_end = NodeFile("telemetry/{}-end.json")
    telemetry_stop = File("telemetry/stop")  # asks every sampler to end
    telemetry_ready = NodeFile("telemetry/{}.ready")  # once its first samples are on disk
    telemetry_failed = NodeFile("telemetry/{}.failed")  # if its sampler ended with an error
    #: locked by the node's sampler while it runs; holds its process id
    telemetry_lock = NodeFile("telemetry/{}.lock")

    def reduced(self) -> tuple[Path, ...]:
        """The files that the reduction of a measured run writes."""
        return self.step_times, self.series, self.summary

    def of_job(self) -> tuple[Path, ...]:
        """The directories that a job writes to, besides its logs."""
        return self.steps, self.errors, self.exits, self.telemetry, self.gpu_limits, self.traces

    def job_log(self, job: str | None) -> Path:
        """What the script of a job printed: Slurm's file or, for a job of this machine,
        submitit's."""
        of_this_machine = self.logs / f"{job}_0_log.out"
        return of_this_machine if of_this_machine.exists() else self.logs / f"slurm-{job}.log"

    def sampled_nodes(self) -> list[str]:
        """Names of the nodes whose sampler started, sorted."""
        starts = self.telemetry.glob("*.json")
        return sorted(p.stem for p in starts if not p.name.endswith("-end.json"))


@dataclass(frozen=True)
class SweepPaths:
    """Every path of a sweep's tables, figures and page. No other module holds these names."""

    directory: Path

    plan = File("plan.parquet")
    plan_checksum = File(".plan.sha256")
    table_checksums = File(".tables.sha256")
    figures = File("figures")  # one file for each figure and format
    report = File("report.html")
    report_checksum = File(".report.sha256")

    def table(self, name: str) -> Path:
        """The table of this name in TABLES."""
        return self.directory / f"{name}.parquet"

    @staticmethod
    def figure_checksums(figures: Path) -> Path:
        """The checksums of the figures, in the directory of the figures."""
        return figures / ".figures.sha256"


@dataclass(frozen=True)
class ComparisonPaths:
    """Every path of a comparison of two sweeps. No other module holds these names."""

    directory: Path

    table = File("comparison.parquet")
    figures = File("figures")
    page = File("comparison.html")
    checksums = File(".comparison.sha256")  # of the table, the figures and the page


def measured_runs(directory: Path) -> list[Path]:
    """The directories of measured commands: this one, or those right below it, by their names; this
    one, too, where there is none, so that its reader says what it lacks."""
    if RunPaths(directory).measured.is_file():
        return [directory]
    below = [path for path in sorted(directory.glob("*")) if RunPaths(path).measured.is_file()]
    return below or [directory]


def node_name() -> str:
    """This node's name: Slurm's name of it in a job, else the host's name without a domain."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


def rank_number() -> int:
    """The number of this process's rank, as its launcher set it; 0 without a launcher."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def boot_id() -> str | None:
    """The kernel's boot id, which each boot changes (random(4)); None if it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


@functools.cache
def code_sha256() -> str | None:
    """The SHA-256 of the zip from which this process imports its code; None if the code is not in
    one, as outside of a job."""
    loader = sys.modules[__name__].__loader__
    if not isinstance(loader, zipimport.zipimporter):
        return None
    return hashlib.sha256(Path(loader.archive).read_bytes()).hexdigest()


def job_id() -> str | None:
    """The scheduler's id of this process's job, as the job script set it; None outside of a job."""
    return os.environ.get("TRIPTYCH_JOB_ID")
