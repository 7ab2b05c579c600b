"""Waits until a job has written its end record, or has ended without one."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from workflow_lib.launch import interruption, run_lock
from workflow_lib.launch.messages import say
from workflow_lib.launch.run_lock import LockedRun
from workflow_lib.launch.schedulers import queries, slurm
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import EndedRecord, JobRecord, JobState
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError


class Progress:
    """The progress of one run, and what was last printed of it."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._shown = ""
        self._steps_read = 0
        self._steps = -1  # the first line holds the columns' names

    def tell(self, state: JobState | None) -> None:
        """Print the progress if it has changed. ``state`` is the scheduler's state of the job."""
        now = self._now(state)
        if now != self._shown:
            say(now)
            self._shown = now

    def _now(self, state: JobState | None) -> str:
        steps = self._paths.rank_steps(0)
        if steps.exists():
            return f"training: {max(self._count(steps), 0)} steps done"
        self._steps_read, self._steps = 0, -1
        if any(self._paths.telemetry.glob("*.ready")):
            return "telemetry is ready; idle baseline, then training starts"
        if self._paths.environment.exists():
            return "the job has started"
        if state is None:
            return "waiting for the job to start"
        why = f": {state.reason}" if state.reason else ""
        return f"waiting for the job to start ({state.state}{why})"

    def _count(self, steps: Path) -> int:
        """How many steps the file holds. Only text that was added since the last call is read."""
        with steps.open("rb") as stream:
            stream.seek(self._steps_read)
            while text := stream.read(65536):
                self._steps += text.count(b"\n")
                self._steps_read += len(text)
        return self._steps


#: how often the run directory and the job's known state are checked
LOOK_EVERY_S = 1.0
#: how often the scheduler is asked
ASK_EVERY_S = slurm.ASK_EVERY_S
#: how long a shared file system may take to show the end record after a job's end
FILE_SYSTEM_LAG_S = 20.0
#: the same for a job on this machine, which needs no shared file system
LOCAL_LAG_S = 2.0
#: how long a job that no node launched may be held before it is cancelled: an admin may release it
HELD_FOR_S = 60.0
#: how long after a job's end record the scheduler may take to report the job's final state
SETTLE_S = 15.0 + ASK_EVERY_S
#: How long the files of a job may stop growing before it is taken for lost, if Slurm does not know
#: it: samplers write every second, and an NFS client may see that 60 s later.
QUIET_S = 90.0


class NotYetError(RuntimeError):
    """The job did not end within the given time."""


class JobWait:
    """One process's wait for the end of a run's job."""

    def __init__(self, run: LockedRun, job: JobRecord, patience_s: float | None = None) -> None:
        """``patience_s`` is how long to wait, in s; None means without end."""
        self.job = job
        #: whether the scheduler's first answer was that the job is over
        self.was_over = False
        self._paths = run.paths
        self._scheduler = run.scheduler
        self._deadline = None if patience_s is None else time.monotonic() + patience_s
        self._progress = Progress(run.paths)
        self._held_since: float | None = None
        #: names, sizes and times of the job's files, and when they were last seen to change
        self._written: frozenset[tuple[str, int, int]] | None = None
        self._written_at = 0.0
        self._has_grown = False

    def wait(self) -> JobState | None:
        """Wait for the job's end. Returns the scheduler's last state of the job; None if it is not
        known or not needed.

        Raises NotYetError, interruption.InterruptedRunError, and SubmissionError if the job belongs
        to another user and Slurm hides it.
        """
        while True:
            state = self._wait_once()
            if not self._paths.ended.exists() or queries.is_over(state):
                return state
            if _ended_well(self._paths.ended):
                # The job succeeded: the scheduler's state cannot change that.
                return None
            written = written_at(self._paths.ended)
            state = self._settled()
            if state is None and run_lock.is_foreign(self.job):
                raise self._foreign_job_error()  # it may be in the queue again
            if written_at(self._paths.ended) != written:
                continue  # the job has begun again meanwhile
            if not queries.will_start_again(state):
                return state
            word = state.state if state is not None else ""
            say(f"the scheduler requeued job {self.job.job_id} ({word}); it will start again")
            while written_at(self._paths.ended) == written:
                if queries.is_over(self._state()):
                    break
                self._pause(min(ASK_EVERY_S, 5.0))

    def _wait_once(self) -> JobState | None:
        """Wait for the end record or the job's end. Returns the state if it was asked for."""
        state: JobState | None = None
        waited = False
        # This reads the job-state cache. The cache decides how often Slurm itself is asked.
        first_query = time.monotonic() + min(ASK_EVERY_S, 2.0)
        next_look = 0.0
        while not self._paths.ended.exists():
            if (now := time.monotonic()) >= first_query:
                state = self._state()
                if queries.word(state) == queries.LOST and self._writes():
                    state = None
                if queries.is_over(state):
                    if queries.word(state) == queries.LOST and run_lock.is_foreign(self.job):
                        raise self._foreign_job_error()
                    self.was_over = not (waited or self._has_grown)
                    self._wait_for_end_record()
                    return state
                if self._is_held(state) and self._cancel_held():
                    return state
                waited = waited or state is not None
            if now >= next_look:
                self._progress.tell(state)
                next_look = now + min(ASK_EVERY_S, 10.0)
            self._pause(LOOK_EVERY_S)
        return state

    def _writes(self) -> bool:
        """Whether the files of a job that Slurm does not know have grown lately."""
        files = [self._paths.environment]
        files += [*self._paths.telemetry.glob("*.csv"), *self._paths.steps.glob("*.csv")]
        files_now = []
        for path in files:
            with contextlib.suppress(FileNotFoundError):  # the job may set an attempt aside
                stat = path.stat()
                files_now.append((path.name, stat.st_size, stat.st_mtime_ns))
        written = frozenset(files_now)
        now = time.monotonic()
        if written != self._written:
            if self._written is not None and not self._has_grown:
                self._has_grown = True
                say(f"Slurm does not know job {self.job.job_id}, but what it writes grows")
            self._written, self._written_at = written, now
        return bool(written) and now - self._written_at <= QUIET_S

    def _foreign_job_error(self) -> Exception:
        return run_lock.foreign_job_error(f"job {self.job.job_id}", self.job, self._paths.job)

    def _is_held(self, state: JobState | None) -> bool:
        """Whether Slurm has held the job for 60 s or more, and the job has not visibly started."""
        if not queries.is_held_unlaunched(state):
            self._held_since = None
            return False
        self._held_since = self._held_since or time.monotonic()
        os.scandir(self._paths.directory).close()
        begun = self._paths.environment.exists()  # the scheduler may not know that it did
        return not begun and time.monotonic() - self._held_since >= HELD_FOR_S

    def _cancel_held(self) -> bool:
        """Cancel a job that no node launched. Returns whether that succeeded."""
        problem = self._scheduler.cancel(self.job)
        result = "it was cancelled" if problem is None else f"it could not be cancelled: {problem}"
        say(f"no node launched job {self.job.job_id}, and the scheduler holds it; {result}")
        return problem is None

    def _wait_for_end_record(self) -> None:
        lag_s = FILE_SYSTEM_LAG_S if self._scheduler.runs_elsewhere else LOCAL_LAG_S
        until = time.monotonic() + lag_s
        if self._deadline is not None:
            # This wait has a deadline, and a job that never began writes no end record.
            has_begun = self._paths.environment.exists()
            until = min(until, self._deadline if has_begun else time.monotonic() + LOCAL_LAG_S)
        while time.monotonic() < until:
            # An NFS client remembers for up to 60 s that a file is missing (acdirmax, nfs(5)).
            # Opening the directory makes it ask the server.
            os.scandir(self._paths.directory).close()
            if self._paths.ended.exists():
                return
            interruption.pause(LOOK_EVERY_S)

    def _settled(self) -> JobState | None:
        """The job's state after its end record, once the scheduler knows how it ended."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            state = self._state()
            settled = queries.is_over(state) or queries.will_start_again(state)
            if settled or time.monotonic() > deadline:
                return state
            self._pause(LOOK_EVERY_S)

    def _state(self) -> JobState | None:
        return self._scheduler.state(self.job)

    def _pause(self, seconds: float) -> None:
        interruption.pause(seconds)
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise NotYetError(f"job {self.job.job_id} has not ended")


def _ended_well(ended: Path) -> bool:
    """Whether the end record says that all stages succeeded; False if it cannot be read."""
    try:
        return read_record(ended, EndedRecord).failed_stage is None
    except RecordError:
        return False


def written_at(path: Path) -> int | None:
    """When a file was written, in ns since the epoch; None if there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
