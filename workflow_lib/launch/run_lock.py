"""A run's lock. One process at a time owns a run, so two invocations never submit it twice.

The kernel releases the lock when its process dies; no file has to be cleaned up.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workflow_lib.launch import interruption
from workflow_lib.launch.messages import say
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.schedulers.scheduler import Scheduler
from workflow_lib.records.outcomes import JobRecord, SubmissionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import may, owner_in_the_way

#: errors of a file system that is mounted without locks; the last is of NFS, for a file that this
#: user may only read
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EBADF)
_TRY_EVERY_S = 0.5


@dataclass(frozen=True)
class LockedRun:
    """A run whose lock this process holds, and the scheduler that it is submitted to."""

    paths: RunPaths
    scheduler: Scheduler
    #: the lock's descriptor; null where the file system has no locks
    lock: int | None
    #: whether another process owned the run before
    had_to_wait: bool
    #: renders the run's script again for its present directory; null if this process cannot
    render_anew: Callable[[], None] | None = None


@contextmanager
def acquire(
    paths: RunPaths, scheduler: Scheduler, render_anew: Callable[[], None] | None = None
) -> Iterator[LockedRun]:
    """Wait for the run's lock, and hold it meanwhile. Raises InterruptedRunError, OSError."""
    # A lock file that another user left may be one that only they may write.
    is_read_only = paths.lock.exists() and not may(paths.lock, os.W_OK)
    with paths.lock.open("r" if is_read_only else "a") as stream:
        had_to_wait = False
        while (has_lock := try_to_lock(stream)) is None:
            if not had_to_wait:
                say(f"another process waits for {paths.directory}; its result will be taken")
            had_to_wait = True
            interruption.pause(_TRY_EVERY_S)
        if not has_lock:
            # Without locks, two processes may submit two jobs. The second job stops when it begins.
            say(f"{stream.name}: no file locks on this file system; start one workflow only")
        yield LockedRun(
            paths, scheduler, stream.fileno() if has_lock else None, had_to_wait, render_anew
        )


def try_to_lock(stream: IO[str]) -> bool | None:
    """Try to lock the file. Returns True if this process now holds the lock, None if another
    process holds it, and False if the file system has no locks, as some parallel ones.

    Raises OSError.
    """
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def is_foreign(record: JobRecord | SubmissionRecord) -> bool:
    """Whether another user submitted the job; False if the user is not known."""
    return record.user_id is not None and record.user_id != os.getuid()


def why_only_read(directory: Path) -> str | None:
    """Says why nothing of the run in ``directory`` may be written, and what to do; None if this
    user may write there, or there is no such directory.
    """
    if not may(directory, os.F_OK) or may(directory, os.W_OK | os.X_OK):
        return None
    whose = owner_in_the_way(directory) or f"{directory} cannot be written to"
    return (
        f"{whose}, so the run is read and nothing is written. Have its owner run snakemake, or run "
        "it with results of your own (`--config results_directory=DIRECTORY`)"
    )


def foreign_job_error(
    job: str, record: JobRecord | SubmissionRecord, file: Path
) -> SubmissionError:
    """The error to raise for another user's ``job`` that Slurm hides. ``file`` is the run's record
    that names it.
    """
    who = "another user" if record.submitted_by == "the job itself" else record.submitted_by
    return SubmissionError(
        f"Slurm does not show you {job} of {who}, which may still run, so the run is left "
        f"alone. Have its submitter run snakemake; or, if the job is gone, delete {file.parent}"
    )
