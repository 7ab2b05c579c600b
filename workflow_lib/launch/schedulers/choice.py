"""What is asked of a scheduler, and which there are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from workflow_lib.launch.schedulers.job_state_cache import Found
from workflow_lib.launch.schedulers.local import Local
from workflow_lib.launch.schedulers.refusals import NotNowError, SubmissionError
from workflow_lib.launch.schedulers.slurm import ASK_EVERY_S, Slurm, sbatch
from workflow_lib.records import Cell, JobState, RunPaths, SubmissionRecord

__all__ = [
    "ASK_EVERY_S",
    "Local",
    "NotNowError",
    "Scheduler",
    "Slurm",
    "SubmissionError",
    "choose",
    "sbatch",
]


class Scheduler(Protocol):
    """What whoever waits asks of Slurm or of this machine; threads share it."""

    #: whether jobs run on other machines, whose files may be seen here only later
    runs_elsewhere: bool

    def turn(self) -> AbstractContextManager[None]:
        """Wait for this thread's turn to submit. Raises InterruptedRunError."""

    def submit(
        self,
        paths: RunPaths,
        cell: Cell,
        submission: SubmissionRecord,
        lock: int | None = None,
        avoid: Sequence[str] = (),
    ) -> str:
        """Submit the run's script; returns the job's id.

        ``lock`` is the descriptor of the run's lock, which whatever submits holds for as long as
        it lives; nodes to ``avoid`` are not used. Raises SubmissionError, and NotNowError where the
        same may go well later.
        """

    def find(self, submission: SubmissionRecord, trusted_after_s: float) -> Found:
        """Look for the job of a submission. That there is none is believed to who was asked after
        ``trusted_after_s``, by the monotonic clock.
        """

    def state(self, job_id: str, name: str | None = None) -> JobState | None:
        """What the scheduler says of the job; None where it cannot tell now.

        A job of another ``name`` is another one, which got the same id later.
        """

    def cancel(self, job_id: str, name: str | None = None) -> str | None:
        """Ask that the job ends; returns what went wrong with that, or None."""

    def cancel_submission(self, submission: SubmissionRecord) -> str | None:
        """As cancel, where the job's id is not known."""

    def forget(self, job_id: str, name: str | None = None) -> None:
        """Nobody waits for the job any more."""

    def is_over(self, state: JobState | None) -> bool:
        """Whether a job in that state has ended for good."""

    def will_start_again(self, state: JobState | None) -> bool:
        """Whether a job that has run and is in that state was put back into the queue."""

    def is_held_unlaunched(self, state: JobState | None) -> bool:
        """Whether no node could launch the job, and it does not start again by itself."""


@functools.cache
def choose(name: str) -> Scheduler:
    """The scheduler that a platform's file names, ``slurm`` or ``local``; the same for all runs of
    this process.
    """
    return Slurm() if name == "slurm" else Local()
