"""The job-state cache: the states of jobs, queried once for all threads of this process.

A thread that finds the last answer older than a period sends one query for all threads. The queries
alternate: ``squeue`` is asked for all jobs. ``sacct`` is asked for jobs that squeue does not list,
because slurmctld forgets jobs minutes after their end. Both are asked by name for jobs whose id is
not known. Before a job counts as lost, ``scontrol`` is asked for it. So any number of runs costs
one command a period. Times are of the monotonic clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from workflow_lib.launch.messages import say, say_once
from workflow_lib.launch.schedulers import queries, query_results
from workflow_lib.launch.schedulers.queries import NoAnswerError
from workflow_lib.launch.schedulers.query_results import (
    SACCT,
    SQUEUE,
    SQUEUE_BY_NAME,
    Answer,
    QueryResults,
    is_sacct,
)
from workflow_lib.launch.schedulers.scheduler import Found
from workflow_lib.records.outcomes import JobState

#: how many jobs scontrol is asked for after one query: it takes one at a time
_MOST_CONFIRMED = 20
#: while Slurm does not answer, the period doubles up to this
LONGEST_PERIOD_S = 300.0


class JobStateCache:
    """The latest states of jobs; one object for all threads that wait."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        #: job_key → since when a thread waits for the job
        self._jobs: dict[str, float] = {}
        #: name that is looked for → when its job was submitted, in Unix time
        self._names: dict[str, float] = {}
        self._results = QueryResults()
        #: held by the thread that sends a query
        self._asking = threading.Lock()

    def state(self, job_id: str, name: str | None = None) -> JobState | None:
        """Slurm's state of the job, at most a few periods old.

        None if it is not known yet, or if the id now belongs to a job of another name.
        """
        key = queries.job_key(job_id, name)
        since = self._jobs.setdefault(key, time.monotonic())
        results = self._latest()
        is_current = results.known_s.get(key, 0.0) >= since
        return results.states.get(key) if is_current else None

    def find(self, name: str, submitted_unix_s: float, trusted_after_s: float) -> Found:
        """Look for a job by its name. The job is absent once both squeue and sacct, asked after
        ``trusted_after_s`` (monotonic clock, s), did not list it.
        """
        self._names[name] = submitted_unix_s
        results = self._latest()
        absent_s = (results.missing_s.get(name), results.unaccounted_s.get(name))
        is_absent = all(when is not None and when >= trusted_after_s for when in absent_s)
        job_id = results.ids.get(name)
        return Found(job_id, is_absent=is_absent and job_id is None)

    def forget(self, key: str) -> None:
        """Stop asking for a job or a name, because no thread waits for it any more."""
        self._jobs.pop(key, None)
        self._names.pop(key, None)

    def _latest(self) -> QueryResults:
        """The latest results. Sends the next query first if it is due and no other thread does."""
        if self._is_due() and self._asking.acquire(blocking=False):
            try:
                if self._is_due():
                    self._results = self._after_query(
                        self._results, dict(self._jobs), dict(self._names)
                    )
            finally:
                self._asking.release()
        return self._results

    def _is_due(self) -> bool:
        """Whether the next query may be sent."""
        return time.monotonic() >= self._results.next_query_s

    def _after_query(
        self, before: QueryResults, jobs: Mapping[str, float], names: Mapping[str, float]
    ) -> QueryResults:
        """The results after one more query."""
        query, about = query_results.next_query(before, jobs, names, time.monotonic())
        before = query_results.only_wanted(before, {*jobs, *names})
        before = replace(before, last_query=query)
        try:
            states, ids = _send(query, about, names, before.missing_columns)
        except NoAnswerError as error:
            if not is_sacct(query) or not error.no_accounting:
                return self._unanswered(before, error)
            say_once(
                "this cluster has no accounting: a job that squeue forgets is recorded as lost"
            )
            before = replace(before, has_accounting=False)
            states, ids = {}, {}
        else:
            if is_sacct(query):
                before = replace(before, has_accounting=True)
        answer = Answer(query, about, states, ids, time.monotonic())
        answer = _confirmed(answer, query_results.overdue(before, answer)[:_MOST_CONFIRMED])
        after = query_results.with_answer(before, answer)
        return replace(after, next_query_s=time.monotonic() + self._period_s)

    def _unanswered(self, before: QueryResults, error: NoAnswerError) -> QueryResults:
        asked_sacct = is_sacct(before.last_query)
        now = time.monotonic()
        soon = replace(before, next_query_s=now + self._period_s)
        if asked_sacct and error.unknown_column is not None:
            return replace(soon, missing_columns=(*before.missing_columns, error.unknown_column))
        count = 1 + (before.sacct_unanswered if asked_sacct else before.unanswered)
        if count == 1:
            say(f"Slurm does not answer now; asking again: {error}")
        again_s = now + min(self._period_s * 2**count, max(LONGEST_PERIOD_S, self._period_s))
        if not asked_sacct:
            return replace(before, unanswered=count, next_query_s=again_s)
        return replace(soon, sacct_unanswered=count, sacct_not_before_s=again_s)


def _confirmed(answer: Answer, overdue: Sequence[str]) -> Answer:
    """The answer, with what ``scontrol`` says of jobs that seem to be lost. A job of which it says
    nothing is not lost."""
    states, gone = dict(answer.states), []
    for job in overdue:
        try:
            state = queries.scontrol(job)
        except NoAnswerError as error:
            say_once(f"a job that squeue does not list is not taken for lost: {error}")
            continue
        if state is None:
            gone.append(job)
        else:
            states[job] = state
    return replace(answer, states=states, gone=gone)


def _send(
    query: str,
    about: Sequence[str],
    names: Mapping[str, float],
    missing_columns: Sequence[str],
) -> tuple[dict[str, JobState], dict[str, str]]:
    """Send a query. Returns states by key, and ids by name. Raises NoAnswerError."""
    if query == SQUEUE:
        return queries.squeue(about), {}
    if query == SACCT:
        return queries.sacct(about, missing_columns), {}
    if query == SQUEUE_BY_NAME:
        named = queries.squeue_by_name(about)
    else:
        named = queries.sacct_by_name({name: names[name] for name in about}, missing_columns)
    return (
        {name: state for name, (_, state) in named.items()},
        {name: job for name, (job, _) in named.items()},
    )
