"""Takes one run from its script to its outcome: submits it unless it has a job, waits for the job,
and tries the run again if the cluster was at fault.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from workflow_lib.launch import attempts, interruption, messages, outcome, run_lock, run_place
from workflow_lib.launch.interruption import InterruptedRunError, ToldToEndError
from workflow_lib.launch.job_script import RenderError
from workflow_lib.launch.job_wait import JobWait, NotYetError, written_at
from workflow_lib.launch.messages import say
from workflow_lib.launch.run_lock import LockedRun, is_foreign
from workflow_lib.launch.schedulers import choice
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.submit import submit
from workflow_lib.records.files import read_if_there, read_record
from workflow_lib.records.nodes import LIMITS_LEFT
from workflow_lib.records.outcomes import EndedRecord, JobRecord, OutcomeRecord, SubmissionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import error_text, write_json

#: how long files that are known to exist may take to be seen
LONGEST_LAG_S = 75.0
_LOOK_EVERY_S = 1.0


def wait_for_files(paths: RunPaths) -> None:
    """Wait until each file of the job's end record is here with all its bytes, or 75 s are over.

    Raises interruption.InterruptedRunError.
    """
    try:
        ended = read_if_there(paths.ended, EndedRecord)
    except RecordError:
        return  # the run's outcome names it
    left = {} if ended is None else ended.left_bytes or {}
    until = time.monotonic() + LONGEST_LAG_S
    is_told = False
    while (late := _late(paths, left)) and time.monotonic() < until:
        if not is_told:
            say(
                f"files that the job wrote are not here yet: {late[0]}, and {len(late) - 1} more; "
                f"waiting up to {LONGEST_LAG_S:.0f} s for the file system to show them"
            )
            is_told = True
        interruption.pause(_LOOK_EVERY_S)


def _late(paths: RunPaths, left: Mapping[str, int]) -> list[str]:
    # Opening a directory makes an NFS client ask the server for its names.
    for directory in (paths.directory, *paths.of_job()):
        with contextlib.suppress(OSError):
            os.scandir(directory).close()
    return [name for name, size in left.items() if _size(paths.directory / name) < size]


def _size(path: Path) -> int:
    """A file's bytes; −1 if it is not there. Opening it makes an NFS client ask for its size."""
    try:
        with path.open("rb") as stream:
            return os.fstat(stream.fileno()).st_size
    except OSError:
        return -1


def judge(run: LockedRun, wait: JobWait | None) -> OutcomeRecord:
    """Wait for the run's job, if one is known. Returns how the run ended.

    Raises what JobWait.wait and outcome.classify raise.
    """
    state = None
    if wait is not None:
        try:
            state = wait.wait()
        finally:
            run.scheduler.forget(wait.job)
    if run.scheduler.runs_elsewhere:
        wait_for_files(run.paths)
    return outcome.classify(run.paths, state)


def record_outcome(run: LockedRun, wait: JobWait | None) -> OutcomeRecord:
    """As :func:`judge`, and write it."""
    ended = judge(run, wait)
    path = run.paths.outcome if ended.outcome.is_result else run.paths.failure
    try:
        write_json(path, ended)
    except OSError:
        say(f"{ended.outcome}: {ended.cause}")  # what is raised says only why it is not recorded
        raise
    return ended


#: how long a cancelled job may take to write its end record: longer than Slurm's KillWait, 30 s
CANCEL_PATIENCE_S = 45.0


@interruption.with_job(times=2)
def cancel(run: LockedRun) -> OutcomeRecord:
    """Cancel the run's job, wait for its end, and record how it ended. A second Ctrl-C ends this.

    Raises InterruptedRunError if the job was not cancelled or has not ended; the message says what
    is left.
    """
    job = read_if_there(run.paths.job, JobRecord)
    submission = read_if_there(run.paths.submission, SubmissionRecord)
    if job is None and submission is None:
        raise InterruptedRunError("interrupted before anything was submitted")
    record = job or submission
    if record is not None and is_foreign(record):
        raise InterruptedRunError(
            f"the job of this run was submitted by another user ({record.submitted_by}): it goes on"
        )
    if job is None:
        assert submission is not None
        problem = run.scheduler.cancel_submission(submission)
        raise InterruptedRunError(
            f"interrupted while {submission.job_name} was submitted; Slurm was asked to cancel "
            f"the job of that name ({problem or 'it accepted'}). The next invocation looks for it"
        )
    if submission is None and job.submitted_by == "the job itself":
        raise InterruptedRunError(f"job {job.job_id} was submitted by hand: it goes on")
    if (problem := run.scheduler.cancel(job)) is not None:
        raise InterruptedRunError(
            f"job {job.job_id} could not be cancelled, and is left: {problem}. Cancel it, or start "
            "again to wait for it"
        )
    say(
        f"cancelled job {job.job_id}; waiting up to {CANCEL_PATIENCE_S:.0f} s for its end. Press "
        "Ctrl-C again to stop waiting"
    )
    try:
        return record_outcome(run, JobWait(run, job, patience_s=CANCEL_PATIENCE_S))
    except (InterruptedRunError, NotYetError):
        raise InterruptedRunError(
            f"job {job.job_id} was cancelled, but has not ended; start again to wait for it"
        ) from None


#: how often a run is tried again at once if the cluster, not the run, is at fault
RETRIES = 2


def run_to_end(
    directory: Path, scheduler_name: str, render_anew: Callable[[], None] | None = None
) -> OutcomeRecord:
    """Take the run in ``directory`` to its end, and return how it ended.

    Writes ``outcome.json`` if the outcome is a result, else ``failure.json``; nothing if this user
    may only read the directory. ``render_anew`` renders the run's script again if the results were
    moved or copied since it was rendered.

    Raises SubmissionError if the job cannot be submitted, RecordError if a record of the run cannot
    be read, and InterruptedRunError if a signal ended the wait before the job's end.
    """
    paths = RunPaths(directory.absolute())
    scheduler = choice.choose(scheduler_name)
    if run_lock.why_only_read(paths.directory):
        return _read_to_end(LockedRun(paths, scheduler, lock=None, had_to_wait=False))
    failed_before = written_at(paths.failure)
    with run_lock.acquire(paths, scheduler, render_anew) as run:
        if run.had_to_wait and written_at(paths.failure) not in (None, failed_before):
            return read_record(paths.failure, OutcomeRecord)
        try:
            return _with_retries(run)
        except ToldToEndError:
            raise
        except InterruptedRunError:
            return cancel(run)


def _read_to_end(run: LockedRun) -> OutcomeRecord:
    """How a run ended of which nothing may be written. Waits for its job.

    Raises SubmissionError if the run has no job.
    """
    for path in (run.paths.outcome, run.paths.failure):
        if (outcome := read_if_there(path, OutcomeRecord)) is not None:
            return outcome
    job = read_if_there(run.paths.job, JobRecord)
    if job is None and not run.paths.ended.exists():
        raise SubmissionError("the run has no job")
    with interruption.with_job():
        return judge(run, JobWait(run, job) if job else None)


def _with_retries(run: LockedRun) -> OutcomeRecord:
    if attempts.is_half_set_aside(run.paths):
        attempts.set_aside(run.paths)
    while True:
        ended, had_ended = _attempt(run)
        if ended.outcome.is_result or interruption.is_asked():
            return ended
        if had_ended:
            # It ended while no process waited. Only a result is taken; else the run is tried again.
            say(f"an earlier attempt ended as {ended.outcome}: {ended.cause}")
            continue
        if (
            ended.outcome not in attempts.CLUSTER_AT_FAULT
            or attempts.cluster_faults_in_a_row(run.paths) > RETRIES
        ):
            return ended
        say(f"{ended.outcome}: {ended.cause}; trying again")


def _attempt(run: LockedRun) -> tuple[OutcomeRecord, bool]:
    """How the run's latest job ended, and whether it had ended before this call."""
    paths = run.paths
    if paths.failure.exists():
        interruption.check()  # what is set aside is tried again
        attempts.set_aside(paths)
    job = _known_job(paths)
    had_ended = paths.ended.exists()
    was_submitted_before = job is not None
    if job is not None:
        if not had_ended:
            run_place.check_known(paths, f"job {job.job_id}")
        say(f"job {job.job_id} was submitted before, by {job.submitted_by}: waiting for it")
    elif not had_ended:
        job = submit(run)
    wait = JobWait(run, job) if job else None
    with interruption.with_job():
        ended = record_outcome(run, wait)
    # A job may have ended without an end record, e.g. on a full file system; the scheduler knows.
    return ended, had_ended or (was_submitted_before and wait is not None and wait.was_over)


def _known_job(paths: RunPaths) -> JobRecord | None:
    """The job that owns the run; None if none does. If ``job.json`` is damaged but
    ``submission.json`` exists, deletes it and returns None: the job is then found by its name.

    Raises RecordError if ``job.json`` is damaged and there is no ``submission.json``.
    """
    try:
        return read_if_there(paths.job, JobRecord)
    except RecordError as error:
        if not paths.submission.exists():
            raise RecordError(
                f"{error}. Which job it names is not known: once no job of the run is left, delete "
                f"{paths.job}"
            ) from None
        say(f"{error}; looking for the job by its name")
        paths.job.unlink()
        return None


def run(
    directory: Path, scheduler: str, render_anew: Callable[[], None] | None = None
) -> str | None:
    """Submit the run, or find its job, and wait for it.

    Prints and returns why the run has no result; returns None if it has one. A result that this
    user cannot write down is none for what comes after. ``render_anew`` is as in run_to_end.
    """
    why_only_read = run_lock.why_only_read(directory)
    try:
        ended = run_to_end(directory, scheduler, render_anew)
    except (
        *(InterruptedRunError, SubmissionError, RenderError, RecordError),
        OSError,
    ) as error:
        problem = error_text(error)
    else:
        problem = f"{ended.outcome}: {ended.cause}; the evidence is in {directory}"
        if ended.outcome.is_result and not (why_only_read and _is_unwritten(directory)):
            if LIMITS_LEFT in ended.cause:
                say(problem)
            return None
    if why_only_read:
        problem += f". {why_only_read}"
    say(problem)
    return problem


def _is_unwritten(directory: Path) -> bool:
    return not RunPaths(directory).outcome.exists()


def run_logged(
    directory: Path, scheduler: str, log: Path, render_anew: Callable[[], None] | None = None
) -> str | None:
    """As run, for one thread of a process that waits for many runs. Messages also go to ``log``. So
    does the traceback of an unexpected error, which is raised again.
    """
    with messages.logged(log):
        try:
            return run(directory, scheduler, render_anew)
        except Exception:
            say(traceback.format_exc())
            raise
