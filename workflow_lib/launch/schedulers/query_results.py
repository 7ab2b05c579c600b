"""The answers of ``squeue`` and ``sacct`` so far, and how one more answer changes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from workflow_lib.launch.schedulers import queries
from workflow_lib.launch.schedulers.queries import LOST
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
