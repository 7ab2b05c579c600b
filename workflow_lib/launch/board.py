"""What Slurm says of jobs, asked once for all processes of a user that wait on this machine.

Each waiting process leaves the id of its job in a directory that all of them share. Whoever finds
that the last answer is older than a period asks, for everybody, one question; the questions take
turns. ``squeue`` is asked for all jobs; ``sacct`` for those that are missing from its answer,
because Slurm forgets them minutes after their end; and both for jobs of which only the name is
known. So any number of runs cost one command a period.

::

    4711@NAME.job …         one a job that somebody waits for, touched whenever its state is wanted
    NAME.name …             one a job that somebody looks for; its time is that of the submission
    board.json              the latest answers, and when the next question may be asked
    asked                   its time is that of the latest question
    lock                    held by whoever asks
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workflow_lib.launch import questions
from workflow_lib.launch.answers import (
    ACCOUNTING,
    QUEUE,
    QUEUE_BY_NAME,
    Answers,
    about_wanted,
    answered,
    is_accounting,
    next_question,
)
from workflow_lib.launch.messages import say, say_once
from workflow_lib.launch.questions import NoAnswerError
from workflow_lib.launch.user_directory import user_directory
from workflow_lib.records import JobState, RecordError, read_record, write_json
from workflow_lib.safety import private_directory

#: while Slurm does not answer, periods double up to this
LONGEST_PERIOD_S = 300.0
#: nobody waits any more for a job whose file was not touched for this long
_FORGOTTEN_AFTER_S = 1200.0


@dataclass(frozen=True)
class Found:
    """What is known of a job that was looked for by its name."""

    #: null where it has not been found
    job_id: str | None
    #: whether everybody who could know it was asked lately, and does not
    is_absent: bool


class Board:
    """The answers that this user's waiting processes share; one object for each process."""

    def __init__(self, period_s: float, directory: Path | None = None) -> None:
        """``directory`` is made where it does not exist; without one it is this user's own.

        Raises PermissionError where others can write it.
        """
        self._period_s = period_s
        self._directory = directory or user_directory()
        self._first_wanted: dict[str, float] = {}
        #: this process's latest answers, in case that they could not be written
        self._kept = Answers()
        self._asked_unix_s = 0.0
        try:
            private_directory(self._directory)
        except PermissionError:
            raise
        except OSError as error:
            say_once(f"{self._directory}: {error.strerror}; Slurm is asked all the same")

    def state(self, job_id: str, name: str | None = None) -> JobState | None:
        """Slurm's word for the job, at most a few periods old; None where it is not known yet, or
        where it is of a job of another name.

        What was told before this process first asked is not taken: it might be of another job that
        had the same id, as on a cluster that was set up anew.
        """
        key = questions.job_key(job_id, name)
        since = self._want(f"{key}.job", time.time())
        answers = self._latest(key)
        told = answers.told_unix_s.get(key, 0.0) >= since
        return answers.states.get(key) if told else None

    def find(self, name: str, submitted_unix_s: float, trusted_after_unix_s: float) -> Found:
        """Look for a job by its name. That there is none is believed to who was asked after
        ``trusted_after_unix_s``.
        """
        self._want(f"{name}.name", submitted_unix_s)
        answers = self._latest(name)
        told = (answers.missing_unix_s.get(name), answers.unaccounted_unix_s.get(name))
        is_absent = all(when is not None and when >= trusted_after_unix_s for when in told)
        job_id = answers.ids.get(name)
        return Found(job_id, is_absent=is_absent and job_id is None)

    def forget(self, key: str) -> None:
        """Nobody here waits for the job, or looks for the name, any more."""
        for suffix in ("job", "name"):
            with contextlib.suppress(OSError):
                (self._directory / f"{key}.{suffix}").unlink(missing_ok=True)
        self._first_wanted.pop(key, None)

    def _want(self, name: str, unix_time_s: float) -> float:
        """Note what is wanted; returns since when this process wants it."""
        path = self._directory / name
        self._mark(path, unix_time_s)
        return self._first_wanted.setdefault(path.stem, time.time())

    def _latest(self, key: str) -> Answers:
        answers = self._read()
        return self._ask(key) if self._is_due(answers) else answers

    def _read(self) -> Answers:
        with contextlib.suppress(OSError, RecordError):
            # An unreadable board is as good as none: it is asked for anew.
            written = _written(self._directory / "board.json")
            if written.next_question_unix_s >= self._kept.next_question_unix_s:
                return written
        return self._kept

    def _is_due(self, answers: Answers) -> bool:
        """Whether the next question may be asked; also where a clock that ran ahead put it off."""
        now = time.time()
        asked = self._asked_unix_s
        with contextlib.suppress(OSError):
            # Where answers cannot be written, this still says that somebody has asked.
            asked = max(asked, (self._directory / "asked").stat().st_mtime)
        if 0 <= now - asked < self._period_s:
            return False
        return not 0 < answers.next_question_unix_s - now <= 2 * LONGEST_PERIOD_S

    def _ask(self, key: str) -> Answers:
        """Ask, unless somebody else does; returns the latest answers."""
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)  # something may have tidied up
            with (self._directory / "lock").open("a") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self._ask_for_all(key)
        except BlockingIOError:
            return self._read()
        except OSError as error:
            say_once(f"{self._directory}: {error.strerror}; asking Slurm for this job alone")
        # Nobody knows of the others then: be all the rarer for it.
        now = time.time()
        answers = self._answered(self._kept, {key: now})
        next_s = max(answers.next_question_unix_s, now + 6 * self._period_s)
        self._kept = replace(answers, next_question_unix_s=next_s)
        return self._kept

    def _ask_for_all(self, key: str) -> Answers:
        answers = self._read()
        if not self._is_due(answers):
            return answers
        self._asked_unix_s = now = time.time()
        self._mark(self._directory / "asked", now)
        answers = self._answered(answers, {key: now} | self._wanted())
        self._kept = answers
        try:
            write_json(self._directory / "board.json", answers)
        except OSError as error:
            say_once(f"{self._directory}: {error.strerror}; asking Slurm on, more rarely")
        return answers

    def _mark(self, path: Path, modified_unix_s: float) -> None:
        """Note in the directory's entry alone, which a full file system often still allows."""
        try:
            path.touch(mode=0o600)
            os.utime(path, (time.time(), modified_unix_s))
        except OSError as error:
            say_once(f"{path}: {error.strerror}; Slurm is asked all the same")

    def _wanted(self) -> dict[str, float]:
        """What anybody waits or looks for, with the time of its file."""
        now = time.time()
        wanted = {}
        for path in sorted(self._directory.iterdir()):
            if path.suffix not in (".job", ".name"):
                continue
            try:
                found = path.stat()
                if now - max(found.st_mtime, found.st_atime) < _FORGOTTEN_AFTER_S:
                    wanted[path.stem] = found.st_mtime
                else:
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue  # its process has just stopped waiting
        return wanted

    def _answered(self, before: Answers, wanted: Mapping[str, float]) -> Answers:
        """The answers after one more question."""
        question, about = next_question(before, wanted, time.time())
        before = replace(about_wanted(before, wanted), last_question=question)
        try:
            told, ids = _put(question, about, wanted, before.sacct_lacks)
        except NoAnswerError as error:
            if not is_accounting(question) or not error.no_accounting:
                return self._unanswered(before, error)
            say_once("this cluster keeps no accounts: a job that squeue forgets is gone")
            before = replace(before, has_accounting=False)
            told, ids = {}, {}
        else:
            if is_accounting(question):
                before = replace(before, has_accounting=True)
        now = time.time()
        after = answered(before, question, about, told, now)
        return replace(after, ids=dict(after.ids) | ids, next_question_unix_s=now + self._period_s)

    def _unanswered(self, before: Answers, error: NoAnswerError) -> Answers:
        accounting = is_accounting(before.last_question)
        now = time.time()
        soon = replace(before, next_question_unix_s=now + self._period_s)
        if accounting and error.unknown_column is not None:
            return replace(soon, sacct_lacks=(*before.sacct_lacks, error.unknown_column))
        count = 1 + (before.accounting_unanswered if accounting else before.unanswered)
        if count == 1:
            say(f"Slurm does not answer now, asking on: {error}")
        again_s = now + min(self._period_s * 2**count, max(LONGEST_PERIOD_S, self._period_s))
        if not accounting:
            return replace(before, unanswered=count, next_question_unix_s=again_s)
        return replace(soon, accounting_unanswered=count, accounting_after_unix_s=again_s)


#: file → the board that was last read from it, and of which version of it
_read_before: dict[Path, tuple[tuple[int, int], Answers]] = {}


def _written(path: Path) -> Answers:
    """What ``board.json`` says; hundreds of runs that one process waits for read it but once."""
    found = path.stat()
    version = (found.st_ino, found.st_mtime_ns)
    before = _read_before.get(path)
    if before is not None and before[0] == version:
        return before[1]
    answers = read_record(path, Answers)
    _read_before[path] = (version, answers)
    return answers


def _put(
    question: str, about: Sequence[str], wanted: Mapping[str, float], lacks: Sequence[str]
) -> tuple[dict[str, JobState], dict[str, str]]:
    """Put a question; returns states by key, and ids by name. Raises NoAnswerError."""
    if question == QUEUE:
        return questions.queued(about), {}
    if question == ACCOUNTING:
        return questions.accounted(about, lacks), {}
    if question == QUEUE_BY_NAME:
        named = questions.queued_by_name(about)
    else:
        named = questions.accounted_by_name({name: wanted[name] for name in about}, lacks)
    return (
        {name: state for name, (_, state) in named.items()},
        {name: job for name, (job, _) in named.items()},
    )
