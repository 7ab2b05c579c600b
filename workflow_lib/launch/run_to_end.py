"""Takes one run from its script to its outcome: submits it unless it has a job, waits for the job,
and tries the run again if the cluster was at fault.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from workflow_lib.launch import attempts, interruption, messages, run_lock, run_place
from workflow_lib.launch.interruption import InterruptedRunError, ToldToEndError
from workflow_lib.launch.job_script import RenderError
from workflow_lib.launch.job_wait import JobWait
from workflow_lib.launch.messages import say
from workflow_lib.launch.record_outcome import cancel, judge, record_outcome
from workflow_lib.launch.run_lock import LockedRun
from workflow_lib.launch.schedulers import choice
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.submit import submit
from workflow_lib.records.files import read_if_there, read_record
from workflow_lib.records.nodes import LIMITS_LEFT
from workflow_lib.records.outcomes import JobRecord, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import error_text

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
    failed_before = _written_at(paths.failure)
    with run_lock.acquire(paths, scheduler, render_anew) as run:
        if run.had_to_wait and _written_at(paths.failure) not in (None, failed_before):
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


def _written_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
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
