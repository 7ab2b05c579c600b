"""Records that a run leaves besides its measurements: its job, its ranks, errors, and its end."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


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
        """Whether the outcome is a property of the cell, so that a new run would end likewise."""
        return self in (Outcome.COMPLETED, Outcome.OUT_OF_MEMORY, Outcome.INFEASIBLE)


@dataclass(frozen=True)
class OutcomeRecord:
    """``outcome.json`` and ``failure.json``: how a run ended."""

    outcome: Outcome
    #: one sentence: what was observed, and where
    cause: str
    job_id: str | None
    nodes: tuple[str, ...]
    started_unix_s: float | None
    ended_unix_s: float | None
    #: the scheduler's state of the job at its end, e.g. "COMPLETED" or "NODE_FAIL"
    scheduler_state: str | None
    #: whether job.sh was edited after it was rendered
    script_edited: bool
    #: nodes that are at fault, as far as known; a retry avoids them
    failed_nodes: tuple[str, ...] = ()
    #: the checksum of the code that all parts of the job ran; null if they ran different code, if
    #: no part recorded it, and in records of earlier versions
    code_sha256: str | None = None


@dataclass(frozen=True)
class JobState:
    """The scheduler's state of a job. Fields that it does not report are null."""

    #: e.g. "RUNNING" or "CANCELLED by 0"
    state: str
    #: why the job waits or was ended, e.g. "Priority" or "ReqNodeNotAvail"
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

    #: seed of the random order
    seed: int
    #: the run's block, which has one run of each cell; 0 for profiled runs
    block: int
    #: from 1, among all runs that the platform's sweeps ask for, ended or not
    place: int
    #: the number of these runs
    runs: int


@dataclass(frozen=True)
class SubmissionRecord:
    """``submission.json``: the name of a job that is about to be submitted.

    It is written before the job is submitted. So the job is found by its name if the process dies
    before it writes the job's id.
    """

    #: the job's unique name
    job_name: str
    unix_time_s: float
    submitted_by: str
    #: the task of this run in a job array, so that its id is "<job>_<task>"; null without an array
    array_task: int | None = None
    #: the id of the user who submits; null in records of earlier versions
    user_id: int | None = None


@dataclass(frozen=True)
class JobRecord:
    """``job.json``: the job that owns the run, written before a process waits for it."""

    scheduler: Literal["slurm", "local"]
    job_id: str
    submitted_unix_s: float
    submitted_by: str
    #: the job's name, which distinguishes it from a later job with the same id; null if the job
    #: itself wrote this record
    job_name: str | None = None
    #: the id of the user who owns the job; null in records of earlier versions
    user_id: int | None = None


@dataclass(frozen=True)
class EndedRecord:
    """``ended.json``: the job's own end record."""

    job_id: str
    nodes: tuple[str, ...]
    started_unix_s: float
    ended_unix_s: float
    #: exit code of the training step; null if training never started
    training_exit_code: int | None
    #: exit code of the telemetry step; null if telemetry never started
    telemetry_exit_code: int | None
    #: the stage of the job that failed; null if none did
    failed_stage: str | None
    script_sha256: str
    #: bytes of each file that the job left, by its path in the run's directory; null in records of
    #: earlier versions
    left_bytes: Mapping[str, int] | None = None
    #: the checksum of the zip that its process imported its code from, as in the records of ranks
    #: and samplers; null in records of earlier versions
    code_sha256: str | None = None


@dataclass(frozen=True)
class StopRecord:
    """``stopped.json``: why the job stops training early, written before it does."""

    #: the run's outcome
    outcome: Outcome
    #: a clause: what was observed
    cause: str
    unix_time_s: float


@dataclass(frozen=True)
class SuspensionRecord:
    """``suspended.json``: how long the job was suspended, by Slurm or a signal. It is written each
    time the job resumes."""

    #: when the first suspension began, to within 5 s
    since_unix_s: float
    #: all suspensions together, to within 5 s each
    seconds: float


@dataclass(frozen=True)
class ErrorRecord:
    """``errors/rank<n>.json``: the error of which a rank died."""

    rank: int
    node: str
    unix_time_s: float
    #: what the rank was doing: "setup", "build", "forward_backward", "data", …
    phase: str
    #: the outcome that this error means for the run
    outcome: Outcome
    message: str
    traceback: str


@dataclass(frozen=True)
class ExitRecord:
    """``exits/rank<n>.json``: how a rank's process ended, if it failed. The rank's watcher writes
    it."""

    rank: int
    node: str
    unix_time_s: float
    #: null if a signal ended it
    exit_code: int | None
    #: e.g. "SIGKILL"; null if it exited by itself
    signal: str | None
    #: whether it ended after the launcher had asked it to end
    told_to_end: bool
    #: processes of this rank's control group that the kernel killed meanwhile because memory ran
    #: out; null if not known
    out_of_memory_kills: int | None
