"""Every path of a run, and of a sweep."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunPaths:
    """Every path of one run. Nothing else in the project spells these names."""

    directory: Path

    @property
    def cell(self) -> Path:
        return self.directory / "cell.json"

    @property
    def cell_checksum(self) -> Path:
        """Of ``cell.json``, as it was rendered."""
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
        """Why the job stopped training early; only where it did."""
        return self.directory / "stopped.json"

    @property
    def suspended(self) -> Path:
        """For how long the job was suspended while it trained; only where it was."""
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
        """Its steps; made with the summary."""
        return self.directory / "steps.parquet"

    @property
    def series(self) -> Path:
        """Its GPUs over time; made with the summary."""
        return self.directory / "series.parquet"

    def reduced(self) -> tuple[Path, ...]:
        """What reducing makes of a measured run."""
        return self.step_times, self.series, self.summary

    @property
    def reduced_checksums(self) -> Path:
        return self.directory / ".reduced.sha256"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

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

    @property
    def traces(self) -> Path:
        """Only where the run is profiled."""
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
        """Of the two tables."""
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
        """What became of waiting for cool GPUs; only where the cell asks for it."""
        return self.directory / "cool-down.json"

    @property
    def gpu_limits(self) -> Path:
        """What the job set on GPUs, a record a node; only where the cell asks for it."""
        return self.directory / "gpu-limits"

    def node_limits(self, node: str) -> Path:
        return self.gpu_limits / f"{node}.json"

    def limits_ready(self, node: str) -> Path:
        """Its existence says that the limits of the node's GPUs are in force."""
        return self.gpu_limits / f"{node}.ready"

    @property
    def telemetry_stop(self) -> Path:
        """Its existence asks every sampler to end."""
        return self.telemetry / "stop"

    def rank(self, rank: int) -> Path:
        return self.steps / f"rank{rank}.json"

    def rank_steps(self, rank: int) -> Path:
        return self.steps / f"rank{rank}.csv"

    def link_count(self, rank: int) -> Path:
        return self.steps / f"links-rank{rank}.json"

    def clock(self, node: str) -> Path:
        """Only in runs of several nodes."""
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
        """Only where sampling rates alternate."""
        return self.telemetry / f"{node}-blocks.csv"

    def host_samples(self, node: str) -> Path:
        return self.telemetry / f"{node}-host.csv"

    def telemetry_start(self, node: str) -> Path:
        return self.telemetry / f"{node}.json"

    def telemetry_end(self, node: str) -> Path:
        return self.telemetry / f"{node}-end.json"

    def telemetry_ready(self, node: str) -> Path:
        """Its existence says that the node's first samples are on disk."""
        return self.telemetry / f"{node}.ready"

    def telemetry_lock(self, node: str) -> Path:
        """Held by the node's sampler while it lives; says which process that is."""
        return self.telemetry / f"{node}.lock"

    def sampled_nodes(self) -> list[str]:
        """Names of the nodes whose sampler started, sorted."""
        starts = self.telemetry.glob("*.json")
        return sorted(p.stem for p in starts if not p.name.endswith("-end.json"))


@dataclass(frozen=True)
class SweepPaths:
    """Every path of what a sweep shows. Nothing else in the project spells these names."""

    directory: Path

    @property
    def plan(self) -> Path:
        """What the sweep would run, at what cost, and what cannot run."""
        return self.directory / "plan.parquet"

    def table(self, name: str) -> Path:
        """A table of TABLES."""
        return self.directory / f"{name}.parquet"

    @property
    def figures(self) -> Path:
        """Holds a file a figure and format."""
        return self.directory / "figures"

    @property
    def report(self) -> Path:
        """The page that has everything in it."""
        return self.directory / "report.html"

    @property
    def plan_checksum(self) -> Path:
        return self.directory / ".plan.sha256"

    @property
    def table_checksums(self) -> Path:
        return self.directory / ".tables.sha256"

    @staticmethod
    def figure_checksums(figures: Path) -> Path:
        """Goes with the figures, in their directory."""
        return figures / ".figures.sha256"

    @property
    def report_checksum(self) -> Path:
        return self.directory / ".report.sha256"


@dataclass(frozen=True)
class ComparisonPaths:
    """Every path of what compares two sweeps. Nothing else in the project spells these names."""

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
        """Of all three."""
        return self.directory / ".comparison.sha256"


def node_name() -> str:
    """This node's name: Slurm's where there is one, else the host's, without a domain."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


def rank_number() -> int:
    """This process's number among the ranks, as its launcher set it; 0 where none did."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def boot_id() -> str | None:
    """Which start of this node's kernel this is (random(4)); None where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def job_id() -> str | None:
    """The scheduler's id of the job that this process is part of, as its script says; else None."""
    return os.environ.get("TRIPTYCH_JOB_ID")
