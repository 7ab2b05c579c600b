"""The interface of a scheduler: what the workflow asks, and what the scheduler answers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from workflow_lib.records.cell import Cell
from workflow_lib.records.outcomes import JobRecord, JobState, SubmissionRecord
from workflow_lib.records.paths import RunPaths

SchedulerName = Literal["slurm", "local"]


@dataclass(frozen=True)
class Submission:
    """A run to be submitted as one job."""

    paths: RunPaths
    cell: Cell
    #: the job's name and who submits it; the contents of ``submission.json``
    record: SubmissionRecord
    #: descriptor of the run's lock, which the submitting command keeps open until it ends; null on
    #: a file system without locks
    lock: int | None = None
    #: nodes that the job must not use
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """The answer to a search for a job by its name."""

    #: null if the job was not found
    job_id: str | None
    #: whether it is certain that there is no such job
    is_absent: bool


class Scheduler(Protocol):
    """What the run owner asks of Slurm or of this machine. All threads share one object."""

    #: the name in a platform's file
    name: SchedulerName
    #: whether jobs run on other machines, whose files may appear here with a delay
    runs_elsewhere: bool

    def submission_lock(self, place: int = 0) -> AbstractContextManager[None]:
        """The submission lock. The waiting thread with the lowest place gets it next.

        Raises InterruptedRunError.
        """

    def submit(self, submission: Submission) -> str | None:
        """Submit the run's script. Returns the job's id; None if it is not known, so that the job
        must be found by its name.

        Raises SubmissionError; NotNowError if the same may succeed later.
        """

    def find(self, record: SubmissionRecord, trusted_after_s: float) -> Found:
        """Look for the job of a submission. The job is absent only if answers that came after
        ``trusted_after_s`` (monotonic clock, s) do not list it.
        """

    def state(self, job: JobRecord) -> JobState | None:
        """The scheduler's state of the job; None if it is not known now.

        A job with the same id and another name is another job, which got the id later.
        """

    def cancel(self, job: JobRecord) -> str | None:
        """Cancel the job. Returns why that failed, or None."""

    def cancel_submission(self, record: SubmissionRecord) -> str | None:
        """Cancel a job whose id is not known. Returns why that failed, or None."""

    def forget(self, job: JobRecord) -> None:
        """Stop asking for the job, because no thread waits for it any more."""

    def forget_submission(self, record: SubmissionRecord) -> None:
        """Stop asking for the job of that submission by its name."""
