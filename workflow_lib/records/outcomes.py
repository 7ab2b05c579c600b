"""What a run leaves besides its measurements: who ran where, what failed, and how it ended."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workflow_lib.records.precisions import Precisions


class Outcome(enum.StrEnum):
    """How a run ended, or why it never began."""

    COMPLETED = "completed"
    OUT_OF_MEMORY = "out_of_memory"
    INFEASIBLE = "infeasible"
    TIMEOUT = "timeout"
    COMMUNICATION_TIMEOUT = "communication_timeout"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    TELEMETRY_INVALID = "telemetry_invalid"
    NONFINITE_LOSS = "nonfinite_loss"
    ERROR = "error"

    @property
    def is_result(self) -> bool:
        """Whether the outcome tells of the cell, so that a rerun would not change it."""
        return self in (Outcome.COMPLETED, Outcome.OUT_OF_MEMORY, Outcome.INFEASIBLE)


@dataclass(frozen=True)
class OutcomeRecord:
    """``outcome.json`` and ``failure.json``."""

    outcome: Outcome
    #: one sentence: what was seen, and where
    cause: str
    job_id: str | None
    nodes: tuple[str, ...]
    started_unix_s: float | None
    ended_unix_s: float | None
    #: what the scheduler called the end, e.g. "COMPLETED" or "NODE_FAIL"
    scheduler_state: str | None
    #: true where job.sh was not what was rendered (it then was submitted by hand)
    script_edited: bool
    #: nodes that are at fault, as far as is known: a retry avoids them
    failed_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobState:
    """What the scheduler says of a job; what it does not say is null."""

    #: its word, e.g. "RUNNING", "CANCELLED by 0"
    state: str
    #: why a job waits, or was ended, e.g. "Priority", "ReqNodeNotAvail"
    reason: str | None = None
    #: "exit code:signal" of the job's script, as sacct writes it
    exit_code: str | None = None
    #: the highest exit code of its steps, in the same form
    step_exit_code: str | None = None
    #: the node whose failure ended the job
    failed_node: str | None = None


@dataclass(frozen=True)
class OrderRecord:
    """``order.json``: a run's place in the order of submission, written before it is submitted."""

    #: of the random order
    seed: int
    #: the block that the run is in: one run of each cell; 0 of profiled runs
    block: int
    #: from 1, among all runs that the platform's sweeps ask for, ended or not
    place: int
    #: how many these are
    runs: int


@dataclass(frozen=True)
class SubmissionRecord:
    """``submission.json``: that a job is about to be submitted, written before it is, so that a job
    whose number nobody lived to write down is found again.
    """

    #: the job's name, which no other submission has
    job_name: str
    unix_time_s: float
    submitted_by: str
    #: which task of that job is this run's, where it is an array; its id is then "<job>_<task>"
    array_task: int | None = None
    #: the number of the user who submits; null in records of earlier versions
    user_id: int | None = None


@dataclass(frozen=True)
class JobRecord:
    """``job.json``: what was submitted, written before anybody waits for it."""

    scheduler: Literal["slurm", "local"]
    job_id: str
    submitted_unix_s: float
    submitted_by: str
    #: what the scheduler calls it, by which another job that got the same id is known; null where
    #: the job itself wrote this
    job_name: str | None = None
    #: the number of the user whose job it is; null in records of earlier versions
    user_id: int | None = None


@dataclass(frozen=True)
class EndedRecord:
    """``ended.json``: the job's own end record."""

    job_id: str
    nodes: tuple[str, ...]
    started_unix_s: float
    ended_unix_s: float
    #: exit code of the training step; null where training never started
    training_exit_code: int | None
    #: exit code of the telemetry step
    telemetry_exit_code: int | None
    #: which part of the job failed first, null where none did
    failed_stage: str | None
    script_sha256: str


@dataclass(frozen=True)
class StopRecord:
    """``stopped.json``: why the job stopped training early, written before it did."""

    #: what the run then is
    outcome: Outcome
    #: a clause on what was seen
    cause: str
    unix_time_s: float


@dataclass(frozen=True)
class SuspensionRecord:
    """``suspended.json``: that the job was stopped for a while, by Slurm or a signal, and went on;
    written when it did.
    """

    #: when it was last seen before it was stopped for the first time
    since_unix_s: float
    #: all times together, to within 5 s each
    seconds: float


@dataclass(frozen=True)
class RankRecord:
    """``steps/rank<n>.json``: where a rank ran and what it held."""

    rank: int
    node: str
    #: index of the GPU within its node, as telemetry counts them; null on a CPU
    gpu: int | None
    device_name: str
    tp_rank: int
    pp_rank: int
    dp_rank: int
    ep_rank: int
    #: parameters that this rank holds, before any ZeRO partitioning
    parameters: int
    pid: int
    started_unix_s: float
    #: as found before the first step, and with all that there is after it; null in records of
    #: earlier versions
    precisions: Precisions | None = None
    #: of its GPU, as the driver identifies it to CUDA; null on a CPU, on AMD GPUs, and in records
    #: of earlier versions
    gpu_uuid: str | None = None
    #: which start of the node's kernel, and which job, this was; null where that is not known, and
    #: in records of earlier versions
    boot_id: str | None = None
    job_id: str | None = None


@dataclass(frozen=True)
class LinkReading:
    """A GPU's counters over all of its links, cumulative, at a boundary between two steps."""

    unix_time_s: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class LinkCount:
    """``steps/links-rank<n>.json``: what a rank's GPU sent and received in whole steps."""

    rank: int
    #: the first step that was counted, and how many were
    first_step: int
    steps: int
    #: before the first of them and after the last; null where there is a reason
    before: LinkReading | None
    after: LinkReading | None
    #: why nothing was counted, "" where it was
    reason: str = ""


@dataclass(frozen=True)
class ErrorRecord:
    """``errors/rank<n>.json``: what a rank died of."""

    rank: int
    node: str
    unix_time_s: float
    #: where it was: "setup", "build", "forward_backward", "data", …
    phase: str
    #: the outcome that this error means for the run
    outcome: Outcome
    message: str
    traceback: str


@dataclass(frozen=True)
class ExitRecord:
    """``exits/rank<n>.json``: how a rank's process ended, told by the process that started it; for
    ranks that ended otherwise than well.
    """

    rank: int
    node: str
    unix_time_s: float
    #: null where a signal ended it
    exit_code: int | None
    #: e.g. "SIGKILL"; null where it exited by itself
    signal: str | None
    #: whether it ended after the launcher had asked all ranks to end
    told_to_end: bool
    #: processes that the kernel ended meanwhile for want of memory, in this rank's control group;
    #: null where that cannot be told
    out_of_memory_kills: int | None


@dataclass(frozen=True)
class TelemetryStart:
    """``telemetry/<node>.json``: what the sampler found, written before its first sample."""

    node: str
    #: "nvidia", "amd" or "simulated": never "auto"
    source: str
    simulated: bool
    started_unix_s: float
    sample_rate_hz: float
    #: one entry a GPU: name, uuid, serial, power_limit_w, driver_version, as far as known
    gpus: tuple[Mapping[str, Any], ...]
    #: column name → why it stays empty on this node
    missing: Mapping[str, str]
    #: GPUs of the node that the driver lists and the job does not have: index, name, uuid,
    #: power_limit_w, and power_w, a reading before training; of one it may not read, null
    other_gpus: tuple[Mapping[str, Any], ...] = ()
    #: which start of the node's kernel, and which job, this was; null where that is not known, and
    #: in records of earlier versions
    boot_id: str | None = None
    job_id: str | None = None

    def number_of(self, gpu: int, uuid: str | None) -> int | None:
        """The sampler's number of the GPU that a rank trained on: that of its UUID, where the rank
        and the source tell one, else the rank's own number. None where no GPU has the UUID.
        """
        known = [str(entry.get("uuid") or "").lower() for entry in self.gpus]
        if uuid is None or not all(known):
            return gpu
        return known.index(uuid.lower()) if uuid.lower() in known else None

    def power_sensor(self, gpu: int, gpus_per_package: int) -> int:
        """The GPU that reports the power of this one's package, as the source found it; the
        package's first where the source does not say.

        On MI250 the other die's own reading is 0 or absent, and means nothing.
        """
        if gpu < len(self.gpus) and "package" in self.gpus[gpu]:
            package = self.gpus[gpu]["package"]
            for other, entry in enumerate(self.gpus):
                if entry.get("package") == package and entry.get("reports_power"):
                    return other
        return gpu - gpu % gpus_per_package


@dataclass(frozen=True)
class CoolDown:
    """``cool-down.json``: what became of waiting for cool GPUs."""

    started_unix_s: float
    waited_s: float
    #: whether every GPU got as cool as the cell asks
    reached: bool
    #: of all nodes' GPUs, before and after the wait
    hottest_before_c: float
    hottest_after_c: float


@dataclass(frozen=True)
class TelemetryEnd:
    """``telemetry/<node>-end.json``: what the sampler did, written when it ends in order."""

    node: str
    ended_unix_s: float
    #: ticks, at each of which every GPU was read
    samples: int
    #: ticks that came later than half a period after their deadline
    late_samples: int
    #: ticks whose deadline passed altogether, so that they were left out
    missed_samples: int
    #: "column: message" → how often a reading failed
    errors: Mapping[str, int]
    cpu_time_s: float
    peak_memory_bytes: int
