"""What is asked of a scheduler, and what it answers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from workflow_lib.records import Cell, JobRecord, JobState, RunPaths, SubmissionRecord

SchedulerName = Literal["slurm", "local"]


@dataclass(frozen=True)
class Submission:
    """A run that is given to a scheduler as one job."""

    paths: RunPaths
    cell: Cell
    #: the job's name, and who submits it, as ``submission.json`` has them
    record: SubmissionRecord
    #: descriptor of the run's lock, which whatever submits holds for as long as it lives; null on a
    #: file system without locks
    lock: int | None = None
    #: nodes that the job must not use
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What is known of a job that was looked for by its name."""

    #: null where it has not been found
    job_id: str | None
    #: whether everybody who could know it was asked lately, and does not
    is_absent: bool


class Scheduler(Protocol):
    """What the owner of a run asks of Slurm or of this machine; threads share it."""

    #: as a platform's file names it
    name: SchedulerName
    #: whether jobs run on other machines, whose files may be seen here only later
    runs_elsewhere: bool

    def submission_lock(self, place: int = 0) -> AbstractContextManager[None]:
        """Held by the one thread that submits; of those that wait the one with the lowest place
        comes next. Raises InterruptedRunError.
        """

    def submit(self, submission: Submission) -> str | None:
        """Submit the run's script; returns the job's id, or None where that is not known and it
        must be found by its name.

        Raises SubmissionError, and NotNowError where the same may succeed later.
        """

    def find(self, record: SubmissionRecord, trusted_after_s: float) -> Found:
        """Look for the job of a submission. That there is none is believed to who was asked after
        ``trusted_after_s``, by the monotonic clock.
        """

    def state(self, job: JobRecord) -> JobState | None:
        """What the scheduler says of the job; None where it cannot tell now.

        A job of another name is another one, which got the same id later.
        """

    def cancel(self, job: JobRecord) -> str | None:
        """Ask that the job ends; returns what went wrong with that, or None."""

    def cancel_submission(self, record: SubmissionRecord) -> str | None:
        """As cancel, where the job's id is not known."""

    def forget(self, job: JobRecord) -> None:
        """Nobody waits for the job any more."""

    def forget_submission(self, record: SubmissionRecord) -> None:
        """Nobody looks for the job of that submission any more."""

    def is_over(self, state: JobState | None) -> bool:
        """Whether a job in that state has ended for good."""

    def will_start_again(self, state: JobState | None) -> bool:
        """Whether a job that has run and is in that state was put back into the queue."""

    def is_held_unlaunched(self, state: JobState | None) -> bool:
        """Whether no node could launch the job, and it does not start again by itself."""
