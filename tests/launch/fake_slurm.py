"""Slurm as a run's owner sees it, without Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workflow_lib.launch.schedulers.scheduler import Found, Submission
from workflow_lib.launch.schedulers.slurm import Slurm
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobRecord, JobState, SubmissionRecord


class Fake(Slurm):
    """Slurm's words, without Slurm: each submission starts the next course of events.

    States are given in the order in which they are answered; the last is answered for good.
    """

    def __init__(
        self, *courses: Callable[[str], None], states: tuple[str | None, ...] = ()
    ) -> None:
        super().__init__()
        self.courses = list(courses)
        self.states = list(states or ("COMPLETED",))
        self.submitted: list[str] = []
        #: nodes that each submission avoided, and the name of each
        self.names: list[str] = []
        self.avoided: list[tuple[str, ...]] = []
        #: what is found of a submission that was interrupted: ids, or None for none
        self.found: list[str | None] = []

    @contextmanager
    def submission_lock(self, place: int = 0) -> Iterator[None]:
        yield

    def submit(self, submission: Submission) -> str:
        record = submission.record
        # It can be found again before anybody knows its number.
        assert read_record(submission.paths.submission, SubmissionRecord) == record
        assert submission.lock is not None
        self.avoided.append(submission.avoid)
        self.names.append(record.job_name)
        self.submitted.append(str(len(self.submitted) + 1))
        self.courses.pop(0)(self.submitted[-1])
        return self.submitted[-1]

    def find(self, record: SubmissionRecord, trusted_after_s: float) -> Found:
        if time.monotonic() < trusted_after_s or not self.found:
            return Found(None, is_absent=False)
        job_id = self.found.pop(0)
        return Found(job_id, is_absent=job_id is None)

    def state(self, job: JobRecord) -> JobState | None:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return None if state is None else JobState(state)
