"""What Slurm says of jobs, asked once for all processes of a user that wait on this machine.

Each waiting process leaves the id of its job in a directory that all of them share. Whoever finds
that the last answer is older than a period asks, for everybody, one question: ``squeue`` for all
jobs; and where jobs are missing from its answer, because Slurm forgets them minutes after their
end, ``sacct`` for these alone, in the next period. So any number of runs cost one command a period.

::

    4711.job  4712.job …    one a job that somebody waits for, touched whenever its state is wanted
    board.json              the latest answers, and when the next question may be asked
    lock                    held by whoever asks
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from workflow_lib.records import RecordError, read_record, write_json

#: how long a command may take to answer
ANSWER_TIMEOUT_S = 60.0
#: while Slurm does not answer, periods double up to this
LONGEST_PERIOD_S = 300.0
#: nobody waits any more for a job whose file was not touched for this long
_FORGOTTEN_AFTER_S = 1200.0
#: how long a job must be missing from squeue, on a cluster without accounting, to count as gone
_VANISHED_AFTER_S = 60.0
#: the state of such a job: it is over, and nobody can say how
VANISHED = "VANISHED"
_NO_ACCOUNTING = "accounting storage is disabled"


class NoAnswerError(RuntimeError):
    """Slurm did not answer a question; what it said instead."""


@dataclass(frozen=True)
class Answers:
    """``board.json``."""

    #: when each job's state was told; a job that is not here is not known yet
    told_unix_s: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    #: job → since when squeue does not list it
    missing_since_unix_s: Mapping[str, float] = field(default_factory=dict)
    next_question_unix_s: float = 0.0
    #: questions in a row that were not answered
    unanswered: int = 0
    #: whether the next question is sacct's
    ask_accounting: bool = False
    #: of sacct's alone: a database that is down keeps nobody from asking squeue
    accounting_unanswered: int = 0
    accounting_after_unix_s: float = 0.0


class Board:
    """The answers that this user's waiting processes share; one object for each process."""

    def __init__(self, period_s: float, directory: Path | None = None) -> None:
        """``directory`` is made where it does not exist; without one it is this user's own.

        Raises PermissionError where others can write it.
        """
        self._period_s = period_s
        self._directory = directory or _own_directory()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._directory.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise PermissionError(
                f"{self._directory} belongs to somebody else, or others can write it; remove it, "
                "or set TMPDIR to a directory of your own"
            )
        self._wanted_since: dict[str, float] = {}

    def state(self, job_id: str) -> str | None:
        """Slurm's word for the job, at most a period old; None where it is not known yet.

        What was told before this process first asked is not taken: it might be of another job that
        had the same id, as on a cluster that was set up anew.
        """
        now = time.time()
        since = self._wanted_since.setdefault(job_id, now)
        (self._directory / f"{job_id}.job").touch()
        answers = self._read()
        if _is_due(answers):
            answers = self._ask()
        told = answers.told_unix_s.get(job_id, 0.0) >= since
        return answers.states.get(job_id) if told else None

    def forget(self, job_id: str) -> None:
        """Nobody here waits for the job any more."""
        (self._directory / f"{job_id}.job").unlink(missing_ok=True)
        self._wanted_since.pop(job_id, None)

    def _read(self) -> Answers:
        with contextlib.suppress(FileNotFoundError, RecordError):
            # An unreadable board is as good as none: it is asked for anew.
            return read_record(self._directory / "board.json", Answers)
        return Answers()

    def _ask(self) -> Answers:
        """Ask, unless somebody else does; returns the latest answers."""
        with (self._directory / "lock").open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return self._read()
            answers = self._read()
            if not _is_due(answers):
                return answers
            answers = self._answered(answers, self._wanted())
            write_json(self._directory / "board.json", answers)
            return answers

    def _wanted(self) -> list[str]:
        """Ids of the jobs that anybody waits for."""
        now = time.time()
        wanted = []
        for path in self._directory.glob("*.job"):
            try:
                age_s = now - path.stat().st_mtime
            except FileNotFoundError:
                continue  # its process has just stopped waiting
            if age_s < _FORGOTTEN_AFTER_S:
                wanted.append(path.stem)
            else:
                path.unlink(missing_ok=True)
        return sorted(wanted)

    def _answered(self, before: Answers, wanted: Sequence[str]) -> Answers:
        """The answers after one more question."""
        absent = [job for job in wanted if job in before.missing_since_unix_s]
        accounting = (
            before.ask_accounting and bool(absent) and time.time() >= before.accounting_after_unix_s
        )
        try:
            told = _accounted(absent) if accounting else _queued(wanted)
        except NoAnswerError as error:
            if accounting and _NO_ACCOUNTING in str(error).lower():
                told = {job: VANISHED for job in absent if _is_gone(before, job)}
            else:
                return self._unanswered(before, error, accounting)
        now = time.time()
        states = {job: before.states[job] for job in wanted if job in before.states} | told
        times = {job: before.told_unix_s[job] for job in states if job in before.told_unix_s}
        missing = {
            job: before.missing_since_unix_s.get(job, now)
            for job in wanted
            if (job in absent if accounting else job not in told)
        }
        if not accounting:
            # A state of which squeue tells no more is no state, as the job may have ended since;
            # but what the accounting said of a job that was missing before, it would say again.
            states = {
                job: state
                for job, state in states.items()
                if job not in missing or job in before.missing_since_unix_s
            }
        return Answers(
            told_unix_s={job: now if job in told else times[job] for job in states},
            states=states,
            missing_since_unix_s=missing,
            next_question_unix_s=now + self._period_s,
            ask_accounting=bool(missing) and not accounting,
            accounting_unanswered=0 if accounting else before.accounting_unanswered,
            accounting_after_unix_s=0.0 if accounting else before.accounting_after_unix_s,
        )

    def _unanswered(self, before: Answers, error: NoAnswerError, accounting: bool) -> Answers:
        count = 1 + (before.accounting_unanswered if accounting else before.unanswered)
        if count == 1:
            sys.stderr.write(f"triptych: Slurm does not answer now, asking on: {error}\n")
        now = time.time()
        again_s = now + min(self._period_s * 2**count, max(LONGEST_PERIOD_S, self._period_s))
        if not accounting:
            return replace(before, unanswered=count, next_question_unix_s=again_s)
        return replace(
            before,
            accounting_unanswered=count,
            accounting_after_unix_s=again_s,
            ask_accounting=False,
            next_question_unix_s=now + self._period_s,
        )


def _own_directory() -> Path:
    """This user's, for the cluster that the Slurm commands now talk to."""
    cluster = "\0".join(os.environ.get(name, "") for name in ("SLURM_CONF", "SLURM_CLUSTERS"))
    digest = hashlib.sha256(cluster.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"triptych-{os.getuid()}-{digest}"


def _is_due(answers: Answers) -> bool:
    """Whether the next question may be asked; also where a clock that ran ahead put it off."""
    ahead_s = answers.next_question_unix_s - time.time()
    return not 0 < ahead_s <= 2 * LONGEST_PERIOD_S


def _is_gone(answers: Answers, job: str) -> bool:
    return time.time() - answers.missing_since_unix_s[job] >= _VANISHED_AFTER_S


def _queued(jobs: Sequence[str]) -> dict[str, str]:
    """The states of those jobs that slurmctld still knows, ended ones among them."""
    if not jobs:
        return {}
    try:
        text = _output(
            *("squeue", "--noheader", "--states=all", "--format=%A|%T"),
            f"--jobs={','.join(jobs)}",
        )
    except NoAnswerError as error:
        if "invalid job id" in str(error).lower():  # what it says where it knows none of them
            return {}
        raise
    return _pairs(text, jobs)


def _accounted(jobs: Sequence[str]) -> dict[str, str]:
    """The states of those jobs that the accounting database knows."""
    command = ("sacct", "-X", "--noheader", "--parsable2", "--format=JobIDRaw,State")
    return _pairs(_output(*command, f"--jobs={','.join(jobs)}"), jobs)


def _pairs(text: str, jobs: Sequence[str]) -> dict[str, str]:
    pairs = (line.strip().partition("|")[::2] for line in text.splitlines())
    return {job: state for job, state in pairs if job in jobs and state}


def _output(*command: str) -> str:
    """What a command prints. Raises NoAnswerError where it fails, hangs or is not there."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(f"{command[0]}: {error}") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NoAnswerError(f"{command[0]}: {said}")
    return done.stdout
