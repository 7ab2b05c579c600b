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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from workflow_lib.launch.messages import say, say_once
from workflow_lib.launch.schedulers import queries
from workflow_lib.launch.schedulers.queries import LOST, NoAnswerError
from workflow_lib.launch.schedulers.scheduler import Found
from workflow_lib.records.outcomes import JobState

_Value = TypeVar("_Value")

#: how long a job must be missing from squeue before it is recorded as lost, on a cluster without
#: accounting
FORGOTTEN_AFTER_S = 60.0
#: the same on a cluster whose accounting does not know the job or its end: slurmctld may have lost
#: the job
LOST_AFTER_S = 900.0
_LOST = JobState(LOST, reason="neither squeue, sacct nor scontrol knows how it ended")
#: the queries, in the order in which they alternate
SQUEUE, SACCT = "squeue", "sacct"
SQUEUE_BY_NAME, SACCT_BY_NAME = "squeue by name", "sacct by name"
_QUERIES = (SQUEUE, SACCT, SQUEUE_BY_NAME, SACCT_BY_NAME)


@dataclass(frozen=True)
class QueryResults:
    """The latest answers, and when each came, in s of the monotonic clock.

    A key is a job_key, or the name of a job whose id is not known.
    """

    #: key → when Slurm last gave the job's state; a key that is not here has no known state
    known_s: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, JobState] = field(default_factory=dict)
    #: name → the id of the job that has it
    ids: Mapping[str, str] = field(default_factory=dict)
    #: key → since when squeue does not list the job, and when squeue last did not list it
    missing_since_s: Mapping[str, float] = field(default_factory=dict)
    missing_s: Mapping[str, float] = field(default_factory=dict)
    #: key → when sacct last did not know the job
    unaccounted_s: Mapping[str, float] = field(default_factory=dict)
    next_query_s: float = 0.0
    last_query: str = SACCT_BY_NAME
    #: queries in a row that were not answered
    unanswered: int = 0
    #: the same for sacct, which is counted apart: squeue is asked also while the database is down
    sacct_unanswered: int = 0
    sacct_not_before_s: float = 0.0
    #: whether the cluster has accounting; null until sacct was asked
    has_accounting: bool | None = None
    #: columns that its sacct does not have
    missing_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The answer to one query."""

    query: str
    #: the keys that the query asked for
    about: Collection[str]
    #: key → the state of each job that Slurm knows
    states: Mapping[str, JobState]
    #: name → id, where the query was by name
    ids: Mapping[str, str]
    at_s: float
    #: keys of jobs that :func:`overdue` named and slurmctld does not have
    gone: Collection[str] = ()


def is_sacct(query: str) -> bool:
    """Whether sacct is asked, and not squeue."""
    return query in (SACCT, SACCT_BY_NAME)


def next_query(
    results: QueryResults, jobs: Collection[str], names: Collection[str], now_s: float
) -> tuple[str, list[str]]:
    """Which query comes next, and the keys that it asks for, which are jobs or names."""
    jobs = sorted(jobs)
    names = sorted(name for name in names if name not in results.ids)
    asks_sacct = now_s >= results.sacct_not_before_s
    about = {
        SQUEUE: jobs,
        SACCT: [job for job in jobs if job in results.missing_since_s and asks_sacct],
        SQUEUE_BY_NAME: names,
        SACCT_BY_NAME: [n for n in names if n in results.missing_since_s and asks_sacct],
    }
    last = _QUERIES.index(results.last_query)
    order = _QUERIES[last + 1 :] + _QUERIES[: last + 1]
    query = next((query for query in order if about[query]), SQUEUE)
    return query, about[query]


def with_answer(results: QueryResults, answer: Answer) -> QueryResults:
    """The results after one more answer."""
    silent = [key for key in answer.about if key not in answer.states]
    ids = dict(results.ids) | dict(answer.ids)
    if is_sacct(answer.query):
        known = dict(answer.states) | dict.fromkeys(answer.gone, _LOST)
        return replace(
            results,
            ids=ids,
            states=dict(results.states) | known,
            known_s=dict(results.known_s) | dict.fromkeys(known, answer.at_s),
            unaccounted_s=dict(results.unaccounted_s) | dict.fromkeys(silent, answer.at_s),
            sacct_unanswered=0,
            sacct_not_before_s=0.0,
        )
    # A state from squeue is dropped once squeue no longer lists the job: it may have ended since.
    # A job that was missing before has its state from sacct, which is kept.
    stale = {key for key in silent if key not in results.missing_since_s}
    since = {key: results.missing_since_s.get(key, answer.at_s) for key in silent}
    known_s = dict.fromkeys(answer.states, answer.at_s)
    missing_s = dict.fromkeys(silent, answer.at_s)
    return replace(
        results,
        ids=ids,
        states=_without(results.states, stale) | dict(answer.states),
        known_s=_without(results.known_s, stale) | known_s,
        missing_since_s=_without(results.missing_since_s, answer.about) | since,
        missing_s=_without(results.missing_s, answer.about) | missing_s,
        unanswered=0,
    )


def only_wanted(results: QueryResults, wanted: Collection[str]) -> QueryResults:
    """The results for the wanted keys only."""
    kept = set(wanted)
    return replace(
        results,
        known_s=_only(results.known_s, kept),
        states=_only(results.states, kept),
        ids=_only(results.ids, kept),
        missing_since_s=_only(results.missing_since_s, kept),
        missing_s=_only(results.missing_s, kept),
        unaccounted_s=_only(results.unaccounted_s, kept),
    )


def overdue(results: QueryResults, answer: Answer) -> list[str]:
    """The jobs that squeue has not listed for too long, and of which sacct knows no end."""
    if answer.query != SACCT:
        return []
    limit_s = FORGOTTEN_AFTER_S if results.has_accounting is False else LOST_AFTER_S
    return [
        job
        for job in answer.about
        if not queries.is_over(answer.states.get(job))
        and answer.at_s - results.missing_since_s[job] >= limit_s
    ]


def _only(values: Mapping[str, _Value], keys: Collection[str]) -> dict[str, _Value]:
    return {key: value for key, value in values.items() if key in keys}


def _without(values: Mapping[str, _Value], keys: Collection[str]) -> dict[str, _Value]:
    return {key: value for key, value in values.items() if key not in keys}


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
        query, about = next_query(before, jobs, names, time.monotonic())
        before = only_wanted(before, {*jobs, *names})
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
        answer = _confirmed(answer, overdue(before, answer)[:_MOST_CONFIRMED])
        after = with_answer(before, answer)
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
