"""Records how a run ended, once its job has ended."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from workflow_lib.launch import interruption, outcome
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.job_wait import JobWait, NotYetError
from workflow_lib.launch.messages import say
from workflow_lib.launch.run_lock import LockedRun, is_foreign
from workflow_lib.records.files import read_if_there
from workflow_lib.records.outcomes import EndedRecord, JobRecord, OutcomeRecord, SubmissionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import write_json

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


def cancel(run: LockedRun) -> OutcomeRecord:
    """Cancel the run's job, wait for its end, and record how it ended. A second Ctrl-C ends this.

    Raises InterruptedRunError if the job was not cancelled or has not ended; the message says what
    is left.
    """
    with interruption.with_job(times=2):
        return _cancel(run)


def _cancel(run: LockedRun) -> OutcomeRecord:
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
