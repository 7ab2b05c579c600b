"""What is known of jobs, and what an answer of Slurm changes in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from workflow_lib.launch.schedulers import queries
from workflow_lib.launch.schedulers.queries import VANISHED
from workflow_lib.records import JobState

_Value = TypeVar("_Value")

#: how long a job must be missing from squeue to count as gone, on a cluster without accounting …
VANISHED_AFTER_S = 60.0
#: … and on one whose accounting does not know it, or not of its end: slurmctld may have lost it
LOST_AFTER_S = 900.0
#: in the order in which they take turns
QUEUE, ACCOUNTING = "queue", "accounting"
QUEUE_BY_NAME, ACCOUNTING_BY_NAME = "queue by name", "accounting by name"
_QUESTIONS = (QUEUE, ACCOUNTING, QUEUE_BY_NAME, ACCOUNTING_BY_NAME)


@dataclass(frozen=True)
class Answers:
    """The latest answers, and when each came by one clock, in s.

    A key is a job's id, with its name where that is known; or a name whose id is not known.
    """

    #: when each state was told; what is not here is not known yet
    told_s: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, JobState] = field(default_factory=dict)
    #: name → the id of the job that has it
    ids: Mapping[str, str] = field(default_factory=dict)
    #: since when squeue does not list it, and when it was last asked
    missing_since_s: Mapping[str, float] = field(default_factory=dict)
    missing_s: Mapping[str, float] = field(default_factory=dict)
    #: when the accounting was last asked and did not know it
    unaccounted_s: Mapping[str, float] = field(default_factory=dict)
    next_question_s: float = 0.0
    last_question: str = ACCOUNTING_BY_NAME
    #: questions in a row that were not answered
    unanswered: int = 0
    #: of sacct's alone: a database that is down keeps nobody from asking squeue
    accounting_unanswered: int = 0
    accounting_after_s: float = 0.0
    #: whether the cluster keeps accounts; null until it was asked
    has_accounting: bool | None = None
    #: columns that its sacct does not have
    sacct_lacks: tuple[str, ...] = ()


def is_accounting(question: str) -> bool:
    """Whether the question is sacct's."""
    return question in (ACCOUNTING, ACCOUNTING_BY_NAME)


def next_question(
    answers: Answers, jobs: Collection[str], names: Collection[str], now_s: float
) -> tuple[str, list[str]]:
    """Whose turn it is, and the keys that it is about: jobs that are waited for, or names that are
    looked for.
    """
    jobs = sorted(jobs)
    names = sorted(name for name in names if name not in answers.ids)
    asked = now_s >= answers.accounting_after_s
    about = {
        QUEUE: jobs,
        ACCOUNTING: [job for job in jobs if job in answers.missing_since_s and asked],
        QUEUE_BY_NAME: names,
        ACCOUNTING_BY_NAME: [n for n in names if n in answers.missing_since_s and asked],
    }
    last = _QUESTIONS.index(answers.last_question)
    turns = _QUESTIONS[last + 1 :] + _QUESTIONS[: last + 1]
    question = next((question for question in turns if about[question]), QUEUE)
    return question, about[question]


def answered(
    before: Answers,
    question: str,
    about: Collection[str],
    told: Mapping[str, JobState],
    now_s: float,
) -> Answers:
    """What is known once ``question`` was answered ``about`` these keys."""
    silent = [key for key in about if key not in told]
    if is_accounting(question):
        told = dict(told) | _vanished(before, question, about, told, now_s)
        unaccounted = dict(before.unaccounted_s) | dict.fromkeys(silent, now_s)
        return replace(
            before,
            states=dict(before.states) | told,
            told_s=dict(before.told_s) | dict.fromkeys(told, now_s),
            unaccounted_s=unaccounted,
            accounting_unanswered=0,
            accounting_after_s=0.0,
        )
    # A state of which squeue tells no more is no state, as the job may have ended since; but what
    # the accounting said of a job that was missing before, it would say again.
    stale = {key for key in silent if key not in before.missing_since_s}
    since = {key: before.missing_since_s.get(key, now_s) for key in silent}
    return replace(
        before,
        states=_without(before.states, stale) | dict(told),
        told_s=_without(before.told_s, stale) | dict.fromkeys(told, now_s),
        missing_since_s=_without(before.missing_since_s, about) | since,
        missing_s=_without(before.missing_s, about) | dict.fromkeys(silent, now_s),
        unanswered=0,
    )


def about_wanted(answers: Answers, wanted: Collection[str]) -> Answers:
    """The answers without what nobody wants any more."""
    kept = set(wanted)
    return replace(
        answers,
        told_s=_only(answers.told_s, kept),
        states=_only(answers.states, kept),
        ids=_only(answers.ids, kept),
        missing_since_s=_only(answers.missing_since_s, kept),
        missing_s=_only(answers.missing_s, kept),
        unaccounted_s=_only(answers.unaccounted_s, kept),
    )


def _vanished(
    before: Answers,
    question: str,
    about: Collection[str],
    told: Mapping[str, JobState],
    now_s: float,
) -> dict[str, JobState]:
    """Those of the missing jobs that count as gone, though nobody says how they ended."""
    if question != ACCOUNTING:
        return {}
    limit_s = VANISHED_AFTER_S if before.has_accounting is False else LOST_AFTER_S
    return {
        job: JobState(VANISHED, reason="neither squeue nor sacct knows of its end")
        for job in about
        if not queries.is_over(told.get(job)) and now_s - before.missing_since_s[job] >= limit_s
    }


def _only(values: Mapping[str, _Value], keys: Collection[str]) -> dict[str, _Value]:
    return {key: value for key, value in values.items() if key in keys}


def _without(values: Mapping[str, _Value], keys: Collection[str]) -> dict[str, _Value]:
    return {key: value for key, value in values.items() if key not in keys}
