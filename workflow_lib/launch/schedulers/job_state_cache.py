"""What Slurm says of the jobs that this process waits for, asked once for all of its threads.

A thread that finds the last answer older than a period asks one question for all of them; the
questions take turns. ``squeue`` is asked for all jobs; ``sacct`` for those that its answer lacks,
because Slurm forgets them minutes after their end; and both for jobs of which only the name is
known. So any number of runs cost one command a period. Times are of the monotonic clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workflow_lib.launch.messages import say, say_once
from workflow_lib.launch.schedulers import queries
from workflow_lib.launch.schedulers.queries import NoAnswerError
from workflow_lib.launch.schedulers.query_results import (
    ACCOUNTING,
    QUEUE,
    QUEUE_BY_NAME,
    Answers,
    about_wanted,
    answered,
    is_accounting,
    next_question,
)
from workflow_lib.records import JobState

#: while Slurm does not answer, periods double up to this
LONGEST_PERIOD_S = 300.0


@dataclass(frozen=True)
class Found:
    """What is known of a job that was looked for by its name."""

    #: null where it has not been found
    job_id: str | None
    #: whether everybody who could know it was asked lately, and does not
    is_absent: bool


class JobStates:
    """The latest answers; one object for all threads that wait."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        #: job_key → since when it is waited for
        self._jobs: dict[str, float] = {}
        #: name that is looked for → when its job was submitted, in Unix time
        self._names: dict[str, float] = {}
        self._answers = Answers()
        #: held by whoever asks
        self._asking = threading.Lock()

    def state(self, job_id: str, name: str | None = None) -> JobState | None:
        """Slurm's word for the job, at most a few periods old; None where it is not known yet, or
        where it is of a job of another name.
        """
        key = queries.job_key(job_id, name)
        since = self._jobs.setdefault(key, time.monotonic())
        answers = self._latest()
        told = answers.told_s.get(key, 0.0) >= since
        return answers.states.get(key) if told else None

    def find(self, name: str, submitted_unix_s: float, trusted_after_s: float) -> Found:
        """Look for a job by its name. That there is none is believed to who was asked after
        ``trusted_after_s``.
        """
        self._names[name] = submitted_unix_s
        answers = self._latest()
        told = (answers.missing_s.get(name), answers.unaccounted_s.get(name))
        is_absent = all(when is not None and when >= trusted_after_s for when in told)
        job_id = answers.ids.get(name)
        return Found(job_id, is_absent=is_absent and job_id is None)

    def forget(self, key: str) -> None:
        """Nobody waits for the job, or looks for the name, any more."""
        self._jobs.pop(key, None)
        self._names.pop(key, None)

    def _latest(self) -> Answers:
        """The latest answers, once whoever finds a question due has asked it."""
        if self._is_due() and self._asking.acquire(blocking=False):
            try:
                if self._is_due():
                    self._answers = self._answered(
                        self._answers, dict(self._jobs), dict(self._names)
                    )
            finally:
                self._asking.release()
        return self._answers

    def _is_due(self) -> bool:
        """Whether the next question may be asked."""
        return time.monotonic() >= self._answers.next_question_s

    def _answered(
        self, before: Answers, jobs: Mapping[str, float], names: Mapping[str, float]
    ) -> Answers:
        """The answers after one more question."""
        question, about = next_question(before, jobs, names, time.monotonic())
        before = replace(about_wanted(before, {*jobs, *names}), last_question=question)
        try:
            told, ids = _put(question, about, names, before.sacct_lacks)
        except NoAnswerError as error:
            if not is_accounting(question) or not error.no_accounting:
                return self._unanswered(before, error)
            say_once("this cluster keeps no accounts: a job that squeue forgets is gone")
            before = replace(before, has_accounting=False)
            told, ids = {}, {}
        else:
            if is_accounting(question):
                before = replace(before, has_accounting=True)
        now = time.monotonic()
        after = answered(before, question, about, told, now)
        return replace(after, ids=dict(after.ids) | ids, next_question_s=now + self._period_s)

    def _unanswered(self, before: Answers, error: NoAnswerError) -> Answers:
        accounting = is_accounting(before.last_question)
        now = time.monotonic()
        soon = replace(before, next_question_s=now + self._period_s)
        if accounting and error.unknown_column is not None:
            return replace(soon, sacct_lacks=(*before.sacct_lacks, error.unknown_column))
        count = 1 + (before.accounting_unanswered if accounting else before.unanswered)
        if count == 1:
            say(f"Slurm does not answer now, asking on: {error}")
        again_s = now + min(self._period_s * 2**count, max(LONGEST_PERIOD_S, self._period_s))
        if not accounting:
            return replace(before, unanswered=count, next_question_s=again_s)
        return replace(soon, accounting_unanswered=count, accounting_after_s=again_s)


def _put(
    question: str, about: Sequence[str], names: Mapping[str, float], lacks: Sequence[str]
) -> tuple[dict[str, JobState], dict[str, str]]:
    """Put a question; returns states by key, and ids by name. Raises NoAnswerError."""
    if question == QUEUE:
        return queries.queued(about), {}
    if question == ACCOUNTING:
        return queries.accounted(about, lacks), {}
    if question == QUEUE_BY_NAME:
        named = queries.queued_by_name(about)
    else:
        named = queries.accounted_by_name({name: names[name] for name in about}, lacks)
    return (
        {name: state for name, (_, state) in named.items()},
        {name: job for name, (job, _) in named.items()},
    )
