"""What is known of jobs, and what an answer of Slurm changes in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from workflow_lib.launch import questions
from workflow_lib.launch.questions import VANISHED
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
    """``board.json``. A key is a job's id or, where that is not known, its name."""

    #: when each state was told; what is not here is not known yet
    told_unix_s: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, JobState] = field(default_factory=dict)
    #: name → the id of the job that has it
    ids: Mapping[str, str] = field(default_factory=dict)
    #: since when squeue does not list it, and when it was last asked
    missing_since_unix_s: Mapping[str, float] = field(default_factory=dict)
    missing_unix_s: Mapping[str, float] = field(default_factory=dict)
    #: when the accounting was last asked and did not know it
    unaccounted_unix_s: Mapping[str, float] = field(default_factory=dict)
    next_question_unix_s: float = 0.0
    last_question: str = ACCOUNTING_BY_NAME
    #: questions in a row that were not answered
    unanswered: int = 0
    #: of sacct's alone: a database that is down keeps nobody from asking squeue
    accounting_unanswered: int = 0
    accounting_after_unix_s: float = 0.0
    #: whether the cluster keeps accounts; null until it was asked
    has_accounting: bool | None = None
    #: columns that its sacct does not have
    sacct_lacks: tuple[str, ...] = ()


def is_accounting(question: str) -> bool:
    """Whether the question is sacct's."""
    return question in (ACCOUNTING, ACCOUNTING_BY_NAME)


def next_question(
    answers: Answers, wanted: Collection[str], now_unix_s: float
) -> tuple[str, list[str]]:
    """Whose turn it is, and the keys that it is about."""
    jobs = sorted(key for key in wanted if key[0].isdigit())
    names = sorted(key for key in wanted if not key[0].isdigit() and key not in answers.ids)
    asked = now_unix_s >= answers.accounting_after_unix_s
    about = {
        QUEUE: jobs,
        ACCOUNTING: [job for job in jobs if job in answers.missing_since_unix_s and asked],
        QUEUE_BY_NAME: names,
        ACCOUNTING_BY_NAME: [n for n in names if n in answers.missing_since_unix_s and asked],
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
    now_unix_s: float,
) -> Answers:
    """What is known once ``question`` was answered ``about`` these keys."""
    silent = [key for key in about if key not in told]
    if is_accounting(question):
        told = dict(told) | _vanished(before, question, about, told, now_unix_s)
        unaccounted = dict(before.unaccounted_unix_s) | dict.fromkeys(silent, now_unix_s)
        return replace(
            before,
            states=dict(before.states) | told,
            told_unix_s=dict(before.told_unix_s) | dict.fromkeys(told, now_unix_s),
            unaccounted_unix_s=unaccounted,
            accounting_unanswered=0,
            accounting_after_unix_s=0.0,
        )
    # A state of which squeue tells no more is no state, as the job may have ended since; but what
    # the accounting said of a job that was missing before, it would say again.
    stale = {key for key in silent if key not in before.missing_since_unix_s}
    since = {key: before.missing_since_unix_s.get(key, now_unix_s) for key in silent}
    return replace(
        before,
        states=_without(before.states, stale) | dict(told),
        told_unix_s=_without(before.told_unix_s, stale) | dict.fromkeys(told, now_unix_s),
        missing_since_unix_s=_without(before.missing_since_unix_s, about) | since,
        missing_unix_s=_without(before.missing_unix_s, about) | dict.fromkeys(silent, now_unix_s),
        unanswered=0,
    )


def about_wanted(answers: Answers, wanted: Collection[str]) -> Answers:
    """The answers without what nobody wants any more."""
    kept = set(wanted)
    return replace(
        answers,
        told_unix_s=_only(answers.told_unix_s, kept),
        states=_only(answers.states, kept),
        ids=_only(answers.ids, kept),
        missing_since_unix_s=_only(answers.missing_since_unix_s, kept),
        missing_unix_s=_only(answers.missing_unix_s, kept),
        unaccounted_unix_s=_only(answers.unaccounted_unix_s, kept),
    )


def _vanished(
    before: Answers,
    question: str,
    about: Collection[str],
    told: Mapping[str, JobState],
    now_unix_s: float,
) -> dict[str, JobState]:
    """Those of the missing jobs that count as gone, though nobody says how they ended."""
    if question != ACCOUNTING:
        return {}
    limit_s = VANISHED_AFTER_S if before.has_accounting is False else LOST_AFTER_S
    return {
        job: JobState(VANISHED, reason="neither squeue nor sacct knows of its end")
        for job in about
        if not questions.is_over(told.get(job))
        and now_unix_s - before.missing_since_unix_s[job] >= limit_s
    }


def _only(values: Mapping[str, _Value], keys: Collection[str]) -> dict[str, _Value]:
    return {key: value for key, value in values.items() if key in keys}


def _without(values: Mapping[str, _Value], keys: Collection[str]) -> dict[str, _Value]:
    return {key: value for key, value in values.items() if key not in keys}
