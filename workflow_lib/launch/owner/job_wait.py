"""Waits until a job has left its last word, or is gone without one."""

from __future__ import annotations

import os
import time
from pathlib import Path

from workflow_lib import records
from workflow_lib.launch import interruption
from workflow_lib.launch.messages import say
from workflow_lib.launch.schedulers import choice
from workflow_lib.launch.schedulers.choice import Scheduler
from workflow_lib.records import EndedRecord, JobRecord, JobState, RunPaths

#: how often the run directory is looked at, and what is known of the job
LOOK_EVERY_S = 1.0
#: how often the scheduler is asked
ASK_EVERY_S = choice.ASK_EVERY_S
#: how long after a job's end its last word may take to be seen over a shared file system
FILE_SYSTEM_LAG_S = 20.0
#: where the job ran on this machine there is no such lag
LOCAL_LAG_S = 2.0
#: how long a job that no node launched may be held before it is given up: an admin may let it go
HELD_FOR_S = 60.0
#: how long after a job's last word the scheduler may take to settle what it calls the end, once it
#: is asked
SETTLE_S = 15.0 + ASK_EVERY_S


class NotYetError(RuntimeError):
    """The job had not ended when patience did."""


class Vigil:
    """One process's wait for the end of a run's job."""

    def __init__(
        self,
        paths: RunPaths,
        scheduler: Scheduler,
        job: JobRecord,
        patience_s: float | None = None,
        asked: int = 1,
    ) -> None:
        """Waits for ``patience_s``, or for ever; until SIGINT has come ``asked`` times."""
        self._paths = paths
        self._scheduler = scheduler
        self._job = job
        self._deadline = None if patience_s is None else time.monotonic() + patience_s
        self._asked = asked
        self._progress = _Progress(paths)
        self._held_since: float | None = None
        #: whether the scheduler's first answer was that the job is over
        self.was_over = False

    def wait(self) -> JobState | None:
        """Returns what the scheduler last said of the job.

        Raises NotYetError, interruption.InterruptedRunError, and records.RecordError where the last
        word cannot be read.
        """
        while True:
            state = self._wait_once()
            if not self._paths.ended.exists() or self._scheduler.is_over(state):
                return state
            if records.read_record(self._paths.ended, EndedRecord).failed_stage is None:
                # It did all that it had to do: what the scheduler calls that changes nothing.
                return None
            said = _last_word_at(self._paths.ended)
            state = self._settled()
            if _last_word_at(self._paths.ended) != said:
                continue  # the job has begun again meanwhile
            if not self._scheduler.will_start_again(state):
                return state
            word = state.state if state is not None else ""
            say(f"the scheduler took job {self._job.job_id} back ({word}); it will start again")
            while _last_word_at(self._paths.ended) == said:
                if self._scheduler.is_over(self._state()):
                    break
                self._pause(min(ASK_EVERY_S, 5.0))

    def _wait_once(self) -> JobState | None:
        """Wait for a last word, or for the job's end. Returns the state if it was asked for."""
        state: JobState | None = None
        waited = False
        # What Slurm says is looked at as often as the directory: how often Slurm itself is asked is
        # not for one run to decide.
        first_question = time.monotonic() + min(ASK_EVERY_S, 2.0)
        next_look = 0.0
        while not self._paths.ended.exists():
            if (now := time.monotonic()) >= first_question:
                state = self._state()
                if self._scheduler.is_over(state):
                    self.was_over = not waited
                    self._wait_for_last_word()
                    return state
                if self._is_held(state) and self._is_let_go():
                    return state
                waited = waited or state is not None
            if now >= next_look:
                self._progress.tell(state)
                next_look = now + min(ASK_EVERY_S, 10.0)
            self._pause(LOOK_EVERY_S)
        return state

    def _is_held(self, state: JobState | None) -> bool:
        """Whether the job has been held for a while, and has never begun as far as can be seen."""
        if not self._scheduler.is_held_unlaunched(state):
            self._held_since = None
            return False
        self._held_since = self._held_since or time.monotonic()
        os.scandir(self._paths.directory).close()
        begun = self._paths.environment.exists()  # the scheduler may not know that it did
        return not begun and time.monotonic() - self._held_since >= HELD_FOR_S

    def _is_let_go(self) -> bool:
        """Whether a job that nobody would start was cancelled."""
        problem = self._scheduler.cancel(self._job.job_id, self._job.job_name)
        said = "it was cancelled" if problem is None else f"it could not be cancelled: {problem}"
        say(f"no node launched job {self._job.job_id}, and the scheduler holds it; {said}")
        return problem is None

    def _wait_for_last_word(self) -> None:
        lag_s = FILE_SYSTEM_LAG_S if self._scheduler.runs_elsewhere else LOCAL_LAG_S
        until = time.monotonic() + lag_s
        if self._deadline is not None:
            # Somebody is waiting for this, and a job that never began has nothing to say.
            has_begun = self._paths.environment.exists()
            until = min(until, self._deadline if has_begun else time.monotonic() + LOCAL_LAG_S)
        while time.monotonic() < until:
            # A client of NFS that has looked for a file in vain may believe so for another 60 s
            # (acdirmax, nfs(5)); but to open its directory is to ask the server.
            os.scandir(self._paths.directory).close()
            if self._paths.ended.exists():
                return
            interruption.pause(LOOK_EVERY_S, self._asked)

    def _settled(self) -> JobState | None:
        """The job's state after its last word, once the scheduler knows how it ended."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            state = self._state()
            settled = self._scheduler.is_over(state) or self._scheduler.will_start_again(state)
            if settled or time.monotonic() > deadline:
                return state
            self._pause(LOOK_EVERY_S)

    def _state(self) -> JobState | None:
        return self._scheduler.state(self._job.job_id, self._job.job_name)

    def _pause(self, seconds: float) -> None:
        interruption.pause(seconds, self._asked)
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise NotYetError(f"job {self._job.job_id} has not ended")


def _last_word_at(ended: Path) -> int | None:
    """When the last word was written, in ns; None where there is none."""
    try:
        return ended.stat().st_mtime_ns
    except FileNotFoundError:
        return None


class _Progress:
    """Says where the run is, whenever that has changed."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._shown = ""
        self._steps_read = 0
        self._steps = -1  # the first line holds the columns' names

    def tell(self, state: JobState | None) -> None:
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
        """Lines of the table, of which only new ones are read."""
        with steps.open("rb") as stream:
            stream.seek(self._steps_read)
            while block := stream.read(65536):
                self._steps += block.count(b"\n")
                self._steps_read += len(block)
        return self._steps
