"""Takes one run from its script to its outcome: attaches to its job where there is one, submits it
where there is none, waits, and writes how it ended.

This process waits for as long as the job queues and runs, so it imports little.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow_lib import records
from workflow_lib.launch import attempts, outcome, schedulers, seal
from workflow_lib.launch.schedulers import Scheduler, SubmissionError
from workflow_lib.records import (
    Cell,
    EndedRecord,
    JobRecord,
    Outcome,
    OutcomeRecord,
    RunPaths,
)

#: how often the run directory is looked at, and how often what the scheduler says of the job
LOOK_EVERY_S = 0.5
ASK_EVERY_S = schedulers.ASK_EVERY_S
#: How long after a job's end its last word may take to be seen over a shared file system: a client
#: of NFS that has looked for a file in vain may believe so for another 60 s (acdirmax, nfs(5)).
FILE_SYSTEM_LAG_S = 75.0
#: where the job ran on this machine there is no such lag
_LOCAL_LAG_S = 2.0
#: how long after a job's last word the scheduler may take to settle what it calls the end, once it
#: is asked
SETTLE_S = 15.0 + ASK_EVERY_S
#: how often a run is tried again at once where the cluster, not the run, is at fault
RETRIES = 2
_RETRIED = (Outcome.NODE_FAILURE, Outcome.PREEMPTED)


def run(directory: Path, scheduler_name: str) -> OutcomeRecord:
    """See the run in ``directory`` to its end and return how it ended.

    Writes ``outcome.json`` where that is a result, else ``failure.json``.

    Raises SubmissionError where the job cannot be submitted, and RecordError where the files of the
    run contradict themselves.
    """
    paths = RunPaths(directory.absolute())
    scheduler = schedulers.choose(scheduler_name)
    with _alone(paths):
        if paths.ended.exists() and not paths.failure.exists():
            # It ended while nobody waited. A result is taken; anything else is why we were called.
            ended = _attempt(paths, scheduler, scheduler_name)
            if ended.outcome.is_result:
                return ended
            _say(f"an earlier attempt ended as {ended.outcome}: {ended.cause}")
        for remaining in range(RETRIES, -1, -1):
            ended = _attempt(paths, scheduler, scheduler_name)
            if ended.outcome not in _RETRIED or not remaining:
                return ended
            _say(f"{ended.outcome}: {ended.cause}; trying again")
    raise AssertionError("unreachable")


@contextmanager
def _alone(paths: RunPaths) -> Iterator[None]:
    """Hold the run's lock: two invocations at once must not submit it twice."""
    with paths.lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another process waits for {paths.directory}; its result will be taken")
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            # Some parallel file systems are mounted without locks. Of two jobs the second one
            # still steps back, when it begins.
            _say(f"{paths.lock}: no file locks here ({error.strerror}); start one workflow only")
        yield


def _attempt(paths: RunPaths, scheduler: Scheduler, scheduler_name: str) -> OutcomeRecord:
    if paths.failure.exists():
        attempts.set_aside(paths)
    job = records.read_if_there(paths.job, JobRecord)
    if job is None and not paths.ended.exists():
        job = _submit(paths, scheduler, scheduler_name)
    elif job is not None:
        _say(f"job {job.job_id} was submitted before, by {job.submitted_by}: waiting for it")
    state = _wait(paths, scheduler, job)
    if job is not None:
        scheduler.forget(job.job_id)
    ended = outcome.classify(paths, state)
    records.write_json(paths.outcome if ended.outcome.is_result else paths.failure, ended)
    return ended


def _submit(paths: RunPaths, scheduler: Scheduler, scheduler_name: str) -> JobRecord:
    if not seal.is_intact(paths.script):
        raise SubmissionError(
            f"{paths.script} was edited after it was rendered, so it may not measure the cell that "
            "it is for. Delete it to have it rendered anew, or submit it by hand: the workflow "
            "then takes its result and marks it as edited"
        )
    cell = records.read_record(paths.cell, Cell)
    user = _user()
    job = JobRecord(
        scheduler="slurm" if scheduler_name == "slurm" else "local",
        job_id=scheduler.submit(paths, cell),
        submitted_unix_s=time.time(),
        submitted_by=f"{user} (process {os.getpid()})",
    )
    records.write_json(paths.job, job)
    _say(f"submitted job {job.job_id} for {cell.id}")
    return job


def _user() -> str:
    """Who submits: a name where the machine knows one, else a number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _wait(paths: RunPaths, scheduler: Scheduler, job: JobRecord | None) -> str | None:
    """Wait until the job has left its last word, or is gone without one. Returns its last state."""
    while True:
        state = _wait_once(paths, scheduler, job)
        if job is None or not paths.ended.exists() or scheduler.is_over(state):
            return state
        if records.read_record(paths.ended, EndedRecord).failed_stage is None:
            # It did all that it had to do: what the scheduler calls that changes nothing.
            return None
        said = _last_word_at(paths)
        state = _settled(scheduler, job)
        if _last_word_at(paths) != said:
            continue  # the job has begun again meanwhile
        if not scheduler.will_start_again(state):
            return state
        _say(f"the scheduler took job {job.job_id} back ({state}); it will start again")
        _wait_for_restart(paths, scheduler, job, said)


def _settled(scheduler: Scheduler, job: JobRecord) -> str | None:
    """The job's state after its last word, once the scheduler knows how it ended."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        state = scheduler.state(job.job_id)
        settled = scheduler.is_over(state) or scheduler.will_start_again(state)
        if settled or time.monotonic() > deadline:
            return state
        time.sleep(LOOK_EVERY_S)


def _last_word_at(paths: RunPaths) -> int | None:
    """When the last word was written, in ns; None where there is none."""
    try:
        return paths.ended.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _wait_for_restart(
    paths: RunPaths, scheduler: Scheduler, job: JobRecord, said: int | None
) -> None:
    """Wait until a job that was taken back moves its earlier last word aside, or ends."""
    while _last_word_at(paths) == said:
        if scheduler.is_over(scheduler.state(job.job_id)):
            return
        time.sleep(min(ASK_EVERY_S, 5.0))


def _wait_once(paths: RunPaths, scheduler: Scheduler, job: JobRecord | None) -> str | None:
    """Wait for a last word, or for the end of the job. Returns the state if it was asked for."""
    state: str | None = None
    shown = ""
    next_question = time.monotonic() + min(ASK_EVERY_S, 2.0)
    while not paths.ended.exists():
        if job is not None and time.monotonic() >= next_question:
            state = scheduler.state(job.job_id)
            if scheduler.is_over(state):
                _wait_for_last_word(paths, scheduler)
                return state
            next_question = time.monotonic() + ASK_EVERY_S
        progress = _progress(paths, state)
        if progress != shown:
            _say(progress)
            shown = progress
        time.sleep(LOOK_EVERY_S)
    return state


def _wait_for_last_word(paths: RunPaths, scheduler: Scheduler) -> None:
    lag_s = FILE_SYSTEM_LAG_S if scheduler.runs_elsewhere else _LOCAL_LAG_S
    deadline = time.monotonic() + lag_s
    while not paths.ended.exists() and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)


def _progress(paths: RunPaths, state: str | None) -> str:
    """Where the run is, in a few words."""
    if (steps := paths.rank_steps(0)).exists():
        done = steps.read_bytes().count(b"\n") - 1
        return f"training: {max(done, 0)} steps done"
    if any(paths.telemetry.glob("*.ready")):
        return "telemetry is ready; idle baseline, then training starts"
    if paths.environment.exists():
        return "the job has started"
    return "waiting for the job to start" + (f" ({state})" if state else "")


def _say(message: str) -> None:
    sys.stderr.write(f"triptych: {message}\n")
    sys.stderr.flush()
