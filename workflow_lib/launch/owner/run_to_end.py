"""Takes one run from its script to its outcome: attaches to its job where there is one, submits it
where there is none, waits, and writes how it ended.

Nothing is run twice. One process at a time sees to a run: it holds the run's lock, and so does
``sbatch``, which may outlive it. That a job is about to be submitted, and by which name, is written
before it is; so a job whose number nobody lived to write down is found again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workflow_lib import records
from workflow_lib.launch import attempts, interruption
from workflow_lib.launch.end import outcome
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.messages import say
from workflow_lib.launch.owner.job_wait import NotYetError, Vigil
from workflow_lib.launch.run_owner import claim
from workflow_lib.launch.schedulers import choice
from workflow_lib.launch.schedulers.choice import (
    ASK_EVERY_S,
    NotNowError,
    Scheduler,
    SubmissionError,
)
from workflow_lib.launch.script import checksum
from workflow_lib.records import Cell, JobRecord, OutcomeRecord, RunPaths, SubmissionRecord

#: what a file system says that is mounted without locks
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
#: how often a run is tried again at once where the cluster, not the run, is at fault
RETRIES = 2
#: How long after a submission was interrupted it is believed that there is no job of its name: an
#: orphaned sbatch may still be at it, where locks do not outlive the process that took them.
TRUST_ABSENCE_AFTER_S = float(os.environ.get("TRIPTYCH_TRUST_ABSENCE_AFTER_S", "60"))
#: how long a job that is to be cancelled may take to say its last word: Slurm's KillWait, and more
CANCEL_PATIENCE_S = 45.0
_LOCK_EVERY_S = 0.5


@dataclass(frozen=True)
class _Lock:
    #: null where the file system has no locks
    descriptor: int | None
    #: whether another process had the run before
    had_to_wait: bool


def run(directory: Path, scheduler_name: str) -> OutcomeRecord:
    """See the run in ``directory`` to its end and return how it ended.

    Writes ``outcome.json`` where that is a result, else ``failure.json``.

    Raises SubmissionError where the job cannot be submitted, RecordError where the files of the run
    contradict themselves, and InterruptedRunError where Ctrl-C left something behind.
    """
    paths = RunPaths(directory.absolute())
    scheduler = choice.choose(scheduler_name)
    failed_before = _written_at(paths.failure)
    with _alone(paths) as lock:
        if lock.had_to_wait and _written_at(paths.failure) not in (None, failed_before):
            return records.read_record(paths.failure, OutcomeRecord)
        try:
            return _see_to(paths, scheduler, scheduler_name, lock)
        except InterruptedRunError:
            return _cancelled(paths, scheduler)


def _see_to(
    paths: RunPaths, scheduler: Scheduler, scheduler_name: str, lock: _Lock
) -> OutcomeRecord:
    if attempts.is_half_set_aside(paths):
        attempts.set_aside(paths)
    while True:
        ended, had_ended = _attempt(paths, scheduler, scheduler_name, lock)
        if ended.outcome.is_result:
            return ended
        if had_ended:
            # While nobody waited. A result would be taken; anything else is why we were called.
            say(f"an earlier attempt ended as {ended.outcome}: {ended.cause}")
            continue
        if ended.outcome not in attempts.LOST or attempts.lost_in_a_row(paths) > RETRIES:
            return ended
        say(f"{ended.outcome}: {ended.cause}; trying again")


@contextmanager
def _alone(paths: RunPaths) -> Iterator[_Lock]:
    """Hold the run's lock: two invocations at once must not submit it twice.

    A dead process holds none, whatever files it left.
    """
    with paths.lock.open("a") as stream:
        had_to_wait = False
        while (locks := _try_to_lock(stream)) is None:
            if not had_to_wait:
                say(f"another process waits for {paths.directory}; its result will be taken")
            had_to_wait = True
            interruption.pause(_LOCK_EVERY_S)
        yield _Lock(stream.fileno() if locks else None, had_to_wait)


def _try_to_lock(stream: IO[str]) -> bool | None:
    """True once it is locked; None where another process has it, False where there are no locks."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        # Some parallel file systems are mounted without locks. Of two jobs the second one still
        # steps back, when it begins.
        say(f"{stream.name}: no file locks here ({error.strerror}); start one workflow only")
        return False
    return True


def _attempt(
    paths: RunPaths, scheduler: Scheduler, scheduler_name: str, lock: _Lock
) -> tuple[OutcomeRecord, bool]:
    """How the run's latest job ended, and whether it had before this was asked."""
    if paths.failure.exists():
        attempts.set_aside(paths)
    job = records.read_if_there(paths.job, JobRecord)
    had_ended = paths.ended.exists()
    attached = job is not None
    if job is not None:
        say(f"job {job.job_id} was submitted before, by {job.submitted_by}: waiting for it")
    elif not had_ended:
        job = _submit(paths, scheduler, scheduler_name, lock)
    vigil = Vigil(paths, scheduler, job) if job else None
    ended = _ended(paths, scheduler, job, vigil)
    # One that left no last word, on a full file system for instance, is told by the scheduler.
    return ended, had_ended or (attached and vigil is not None and vigil.was_over)


def _ended(
    paths: RunPaths, scheduler: Scheduler, job: JobRecord | None, vigil: Vigil | None
) -> OutcomeRecord:
    """Wait for the job's end, and write down how it ended."""
    state = None
    if job is not None and vigil is not None:
        try:
            state = vigil.wait()
        finally:
            scheduler.forget(job.job_id, job.job_name)
    ended = outcome.classify(paths, state)
    records.write_json(paths.outcome if ended.outcome.is_result else paths.failure, ended)
    return ended


def _submit(paths: RunPaths, scheduler: Scheduler, scheduler_name: str, lock: _Lock) -> JobRecord:
    """Submit the run, or find the job of a submission that was interrupted."""
    if not checksum.is_intact(paths.script):
        raise SubmissionError(
            f"{paths.script} was edited after it was rendered, so it may not measure the cell that "
            "it is for. Delete it to have it rendered anew, or submit it by hand: the workflow "
            "then takes its result and marks it as edited"
        )
    cell = records.read_record(paths.cell, Cell)
    avoid = attempts.failed_nodes(paths)
    submission = records.read_if_there(paths.submission, SubmissionRecord)
    job_id = None
    if submission is not None:
        job_id = _look_for(scheduler, submission)
    while job_id is None:
        try:
            with scheduler.turn():
                submission = _announce(paths, cell)
                job_id = scheduler.submit(paths, cell, submission, lock.descriptor, avoid)
        except NotNowError as error:
            say(f"Slurm takes no jobs now, trying on: {error}")
            if not error.may_have_been_submitted:
                paths.submission.unlink(missing_ok=True)
            elif submission is not None:
                job_id = _look_for(scheduler, submission)
        except SubmissionError as error:
            if not avoid:
                paths.submission.unlink(missing_ok=True)
                raise
            say(f"without {', '.join(avoid)}, where it failed before, {error}; not avoiding them")
            avoid = ()
    assert submission is not None
    own = JobRecord(
        scheduler="slurm" if scheduler_name == "slurm" else "local",
        job_id=job_id,
        submitted_unix_s=submission.unix_time_s,
        submitted_by=submission.submitted_by,
        job_name=submission.job_name,
    )
    job = claim(paths, own)
    if job.job_id == job_id:
        records.write_json(paths.job, own)  # the job may have been faster, and not known by whom
        elsewhere = f", not on {', '.join(avoid)}, where it failed before" if avoid else ""
        say(f"submitted job {job_id} for {cell.id}{elsewhere}")
        return own
    say(f"job {job.job_id} took the run meanwhile; job {job_id} will step back")
    return job


def _announce(paths: RunPaths, cell: Cell) -> SubmissionRecord:
    """Write what the job about to be submitted is called; no other is called the same."""
    digest = cell.id.rsplit("_", 1)[1]
    number = paths.directory.name.removeprefix("run")
    submission = SubmissionRecord(
        job_name=f"triptych-{digest}-{number}-{os.urandom(4).hex()}",
        unix_time_s=time.time(),
        submitted_by=f"{_user()} (process {os.getpid()})",
    )
    records.write_json(paths.submission, submission)
    return submission


def _look_for(scheduler: Scheduler, submission: SubmissionRecord) -> str | None:
    """The id of the job that was submitted by that name, or None once it is certain that there is
    none.
    """
    say(f"looking for job {submission.job_name}, which may have been submitted before")
    trusted_after_s = time.monotonic() + TRUST_ABSENCE_AFTER_S * scheduler.runs_elsewhere
    patience = time.monotonic() + TRUST_ABSENCE_AFTER_S + 4 * ASK_EVERY_S
    while True:
        found = scheduler.find(submission, trusted_after_s)
        if found.job_id is not None or found.is_absent:
            scheduler.forget(submission.job_name)
            said = f"is job {found.job_id}" if found.job_id else "was never submitted"
            say(f"{submission.job_name} {said}")
            return found.job_id
        if time.monotonic() > patience:
            say("Slurm has not yet said whether there is such a job; waiting, lest it runs twice")
            patience = float("inf")
        interruption.pause(min(1.0, ASK_EVERY_S))


def _cancelled(paths: RunPaths, scheduler: Scheduler) -> OutcomeRecord:
    """Ask that what was submitted ends, and wait a while for that.

    Raises InterruptedRunError with what is left.
    """
    job = records.read_if_there(paths.job, JobRecord)
    submission = records.read_if_there(paths.submission, SubmissionRecord)
    if job is None and submission is None:
        raise InterruptedRunError("interrupted before anything was submitted")
    if job is None:
        assert submission is not None
        problem = scheduler.cancel_submission(submission)
        raise InterruptedRunError(
            f"interrupted while {submission.job_name} was submitted; Slurm was asked to cancel "
            f"what has that name ({problem or 'it took that'}). The next invocation looks for it"
        )
    if submission is None and job.submitted_by == "the job itself":
        raise InterruptedRunError(f"job {job.job_id} was submitted by hand: it goes on")
    if (problem := scheduler.cancel(job.job_id, job.job_name)) is not None:
        raise InterruptedRunError(
            f"job {job.job_id} could not be cancelled, and is left: {problem}. Cancel it, or start "
            "again to wait for it"
        )
    say(
        f"asked that job {job.job_id} ends, and waiting up to {CANCEL_PATIENCE_S:.0f} s for that; "
        "Ctrl-C again does not wait"
    )
    vigil = Vigil(paths, scheduler, job, patience_s=CANCEL_PATIENCE_S, asked=2)
    try:
        return _ended(paths, scheduler, job, vigil)
    except (InterruptedRunError, NotYetError):
        raise InterruptedRunError(
            f"job {job.job_id} was asked to end, and is still there; start again to wait for it"
        ) from None


def _user() -> str:
    """Who submits: a name where the machine knows one, else a number."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _written_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
