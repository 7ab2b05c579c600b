"""Every path of a run, of a sweep and of a comparison."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import sys
import zipimport
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunPaths:
    """Every path of one run. No other module holds these names."""

    directory: Path

    @property
    def cell(self) -> Path:
        return self.directory / "cell.json"

    @property
    def cell_checksum(self) -> Path:
        """The checksum of ``cell.json`` as it was rendered."""
        return self.directory / ".cell.sha256"

    @property
    def script(self) -> Path:
        return self.directory / "job.sh"

    @property
    def job(self) -> Path:
        return self.directory / "job.json"

    @property
    def submission(self) -> Path:
        return self.directory / "submission.json"

    @property
    def order(self) -> Path:
        return self.directory / "order.json"

    @property
    def environment(self) -> Path:
        return self.directory / "environment.json"

    @property
    def ended(self) -> Path:
        return self.directory / "ended.json"

    @property
    def stopped(self) -> Path:
        """Why the job stopped training early; exists only if it did."""
        return self.directory / "stopped.json"

    @property
    def suspended(self) -> Path:
        """For how long the job was suspended while it trained; exists only if it was."""
        return self.directory / "suspended.json"

    @property
    def outcome(self) -> Path:
        return self.directory / "outcome.json"

    @property
    def failure(self) -> Path:
        return self.directory / "failure.json"

    @property
    def summary(self) -> Path:
        return self.directory / "summary.json"

    @property
    def step_times(self) -> Path:
        """The table of the run's steps; made with the summary."""
        return self.directory / "steps.parquet"

    @property
    def series(self) -> Path:
        """The table of the run's GPUs over time; made with the summary."""
        return self.directory / "series.parquet"

    def reduced(self) -> tuple[Path, ...]:
        """The files that the reduction of a measured run writes."""
        return self.step_times, self.series, self.summary

    @property
    def reduced_checksums(self) -> Path:
        return self.directory / ".reduced.sha256"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def training_log(self) -> Path:
        """What the ranks and their launcher printed."""
        return self.logs / "training.log"

    def job_log(self, job: str | None) -> Path:
        """What the script of a job printed: Slurm's file or, for a job of this machine,
        submitit's.
        """
        of_this_machine = self.logs / f"{job}_0_log.out"
        return of_this_machine if of_this_machine.exists() else self.logs / f"slurm-{job}.log"

    @property
    def steps(self) -> Path:
        return self.directory / "steps"

    @property
    def errors(self) -> Path:
        return self.directory / "errors"

    @property
    def exits(self) -> Path:
        return self.directory / "exits"

    @property
    def telemetry(self) -> Path:
        return self.directory / "telemetry"

    def of_job(self) -> tuple[Path, ...]:
        """The directories that a job writes to, besides its logs."""
        return self.steps, self.errors, self.exits, self.telemetry, self.gpu_limits, self.traces

    @property
    def traces(self) -> Path:
        """The directory of traces; exists only in a profiled run."""
        return self.directory / "traces"

    @property
    def kernels(self) -> Path:
        """Kernels by class; made from the traces."""
        return self.traces / "kernels.parquet"

    @property
    def trace_times(self) -> Path:
        """How each rank's time divides; made from the traces."""
        return self.traces / "traces.parquet"

    @property
    def trace_checksums(self) -> Path:
        """The checksums of the two tables."""
        return self.traces / ".tables.sha256"

    @property
    def attempts(self) -> Path:
        return self.directory / "attempts"

    @property
    def lock(self) -> Path:
        """Held by the process that waits for the run."""
        return self.directory / ".lock"

    @property
    def cool_down(self) -> Path:
        """How long the job waited for cool GPUs; exists only if the cell asks for that."""
        return self.directory / "cool-down.json"

    @property
    def gpu_limits(self) -> Path:
        """The limits that the job set on GPUs, a record a node; exists only if the cell asks for
        limits.
        """
        return self.directory / "gpu-limits"

    def node_limits(self, node: str) -> Path:
        return self.gpu_limits / f"{node}.json"

    def limits_ready(self, node: str) -> Path:
        """A file that exists once the limits of the node's GPUs are in force."""
        return self.gpu_limits / f"{node}.ready"

    def limits_failed(self, node: str) -> Path:
        """A file that exists if setting or holding them failed."""
        return self.gpu_limits / f"{node}.failed"

    @property
    def telemetry_stop(self) -> Path:
        """A file that asks every sampler to end."""
        return self.telemetry / "stop"

    def rank(self, rank: int) -> Path:
        return self.steps / f"rank{rank}.json"

    def rank_steps(self, rank: int) -> Path:
        return self.steps / f"rank{rank}.csv"

    def link_count(self, rank: int) -> Path:
        return self.steps / f"links-rank{rank}.json"

    def clock(self, node: str) -> Path:
        """The node's clock; exists only in runs of several nodes."""
        return self.steps / f"clock-{node}.json"

    def trace(self, rank: int) -> Path:
        return self.traces / f"rank{rank}.json.gz"

    def rank_error(self, rank: int) -> Path:
        return self.errors / f"rank{rank}.json"

    def rank_exit(self, rank: int) -> Path:
        return self.exits / f"rank{rank}.json"

    def gpu_samples(self, node: str) -> Path:
        return self.telemetry / f"{node}.csv"

    def gpu_counters(self, node: str) -> Path:
        return self.telemetry / f"{node}-counters.csv"

    def power_samples(self, node: str) -> Path:
        return self.telemetry / f"{node}-power.csv"

    def gpu_events(self, node: str) -> Path:
        return self.telemetry / f"{node}-events.csv"

    def sampler_blocks(self, node: str) -> Path:
        """The costs of sampling blocks; exists only if sampling rates alternate."""
        return self.telemetry / f"{node}-blocks.csv"

    def host_samples(self, node: str) -> Path:
        return self.telemetry / f"{node}-host.csv"

    def telemetry_start(self, node: str) -> Path:
        return self.telemetry / f"{node}.json"

    def telemetry_end(self, node: str) -> Path:
        return self.telemetry / f"{node}-end.json"

    def telemetry_ready(self, node: str) -> Path:
        """A file that exists once the node's first samples are on disk."""
        return self.telemetry / f"{node}.ready"

    def telemetry_failed(self, node: str) -> Path:
        """A file that exists if the node's sampler ended with an error."""
        return self.telemetry / f"{node}.failed"

    def telemetry_lock(self, node: str) -> Path:
        """Locked by the node's sampler while it runs; holds its process id."""
        return self.telemetry / f"{node}.lock"

    def sampled_nodes(self) -> list[str]:
        """Names of the nodes whose sampler started, sorted."""
        starts = self.telemetry.glob("*.json")
        return sorted(p.stem for p in starts if not p.name.endswith("-end.json"))


@dataclass(frozen=True)
class SweepPaths:
    """Every path of a sweep's tables, figures and page. No other module holds these names."""

    directory: Path

    @property
    def plan(self) -> Path:
        """The cells of the sweep with their estimated costs, and why some cannot run."""
        return self.directory / "plan.parquet"

    def table(self, name: str) -> Path:
        """The table of this name in TABLES."""
        return self.directory / f"{name}.parquet"

    @property
    def figures(self) -> Path:
        """A directory with one file for each figure and format."""
        return self.directory / "figures"

    @property
    def report(self) -> Path:
        """The sweep's page, with all its tables and figures."""
        return self.directory / "report.html"

    @property
    def plan_checksum(self) -> Path:
        return self.directory / ".plan.sha256"

    @property
    def table_checksums(self) -> Path:
        return self.directory / ".tables.sha256"

    @staticmethod
    def figure_checksums(figures: Path) -> Path:
        """The checksums of the figures, in the directory of the figures."""
        return figures / ".figures.sha256"

    @property
    def report_checksum(self) -> Path:
        return self.directory / ".report.sha256"


@dataclass(frozen=True)
class ComparisonPaths:
    """Every path of a comparison of two sweeps. No other module holds these names."""

    directory: Path

    @property
    def table(self) -> Path:
        return self.directory / "comparison.parquet"

    @property
    def figures(self) -> Path:
        return self.directory / "figures"

    @property
    def page(self) -> Path:
        return self.directory / "comparison.html"

    @property
    def checksums(self) -> Path:
        """The checksums of the table, the figures and the page."""
        return self.directory / ".comparison.sha256"


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
    one, as outside of a job.
    """
    loader = sys.modules[__name__].__loader__
    if not isinstance(loader, zipimport.zipimporter):
        return None
    return hashlib.sha256(Path(loader.archive).read_bytes()).hexdigest()


def job_id() -> str | None:
    """The scheduler's id of this process's job, as the job script set it; None outside of a job."""
    return os.environ.get("TRIPTYCH_JOB_ID")
