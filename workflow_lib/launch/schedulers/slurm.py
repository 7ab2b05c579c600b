"""Talks to Slurm through ``sbatch``, ``squeue``, ``sacct`` and ``scancel``."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workflow_lib import commands
from workflow_lib.launch import interruption, open_files
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.schedulers import queries
from workflow_lib.launch.schedulers.job_state_cache import LONGEST_PERIOD_S, JobStateCache
from workflow_lib.launch.schedulers.refusals import (
    NotNowError,
    SubmissionError,
    UnclearError,
    refused,
)
from workflow_lib.launch.schedulers.scheduler import Found, SchedulerName, Submission
from workflow_lib.records.outcomes import JobRecord, JobState, SubmissionRecord

#: the first turn begins this long after the last thread came, so that threads that were started
#: together are all there
SETTLE_S = 1.0
#: while threads keep coming, the wait ends after this long
_LONGEST_SETTLE_S = 10.0


class FairLock:
    """A lock that waiting threads get in the order of place, then of arrival."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets = itertools.count()
        self._waiting: set[tuple[int, int]] = set()
        self._is_taken = False
        self._first_came_s = 0.0
        self._last_came_s = 0.0

    @contextmanager
    def hold(self, place: int) -> Iterator[None]:
        """Wait for this thread's turn, and hold the lock. Raises InterruptedRunError."""
        with self._changed:
            ticket = self._enqueue(place)
            try:
                while (wait_s := self._wait_s(ticket)) > 0:
                    self._changed.wait(wait_s)
                    interruption.check()
                self._is_taken = True
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()

    def _enqueue(self, place: int) -> tuple[int, int]:
        self._last_came_s = time.monotonic()
        if not self._waiting:
            self._first_came_s = self._last_came_s
        ticket = place, next(self._tickets)
        self._waiting.add(ticket)
        return ticket

    def _wait_s(self, ticket: tuple[int, int]) -> float:
        """How long to wait before looking again, in s; 0 or less if it is this thread's turn."""
        if self._is_taken or min(self._waiting) != ticket:
            return _LOOK_EVERY_S
        settled_s = min(self._last_came_s + SETTLE_S, self._first_came_s + _LONGEST_SETTLE_S)
        return settled_s - time.monotonic()


#: how often Slurm is asked for the states of jobs, for all runs that this process waits for
ASK_EVERY_S = float(os.environ.get("TRIPTYCH_ASK_SCHEDULER_EVERY_S", "10"))
#: how long sbatch may go on after Ctrl-C or SIGTERM: as Slurm waits for an answer (MessageTimeout).
#: A job that it has submitted by then is found by its name.
_SBATCH_PATIENCE_S = 10.0
_LOOK_EVERY_S = 0.5
#: how often scancel is tried: a site's wrapper of it may fail sometimes
_CANCEL_TRIES = 5
#: the line that sbatch --parsable prints: the job's id and, on a multi-cluster, the cluster
_ID = re.compile(r"([1-9][0-9]*)(;[A-Za-z0-9_.-]+)?")


def sbatch(
    script: Path, logs: Path, log: str, platform: str, *options: str, locks: Sequence[int] = ()
) -> str | None:
    """Submit a script. Returns the job's id; None if the job was submitted but its id is not known,
    because a site's wrapper of sbatch printed lines of its own.

    The job's output goes to the file ``log`` in ``logs``. ``log`` may hold Slurm's patterns, such
    as %j. sbatch keeps the descriptors ``locks`` open, so the files stay locked until sbatch has
    finished, even if this process dies.

    Raises SubmissionError, which names the key of the platform's file to change if that is known,
    and NotNowError.
    """
    if "\\" in str(logs):
        raise SubmissionError(
            f"{logs}: Slurm cannot write its log below a directory with a backslash in "
            "its name; choose another results directory"
        )
    output = str(logs).replace("%", "%%") + f"/{log}"
    if shutil.which("sbatch") is None:
        raise SubmissionError(
            "sbatch is not on the path: run this on a login node of the cluster, or load its "
            "Slurm module first; `--profile local` runs on this machine"
        )
    command = ["sbatch", "--parsable", f"--output={output}", *options, str(script)]
    with subprocess.Popen(
        open_files.as_found(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=locks,
        process_group=0,  # Ctrl-C must not interrupt it
        env=commands.slurm_environment(),
    ) as process:
        result = _read_output(commands.OutputReader(process))
    job_id = _job_id(result.output)
    if result.exit_code != 0:
        raise refused(
            result.errors, result.exit_code, platform, may_be_submitted=job_id is not None
        )
    return job_id


def _job_id(output: str) -> str | None:
    """The job's id in sbatch's output; None unless there is exactly one."""
    ids = {match[1] for line in output.splitlines() if (match := _ID.fullmatch(line.strip()))}
    return ids.pop() if len(ids) == 1 else None


def _read_output(sbatch: commands.OutputReader) -> commands.CommandResult:
    """Wait for sbatch's output. Raises InterruptedRunError if sbatch hangs after a signal, and
    UnclearError if its output does not end.
    """
    patience = _SBATCH_PATIENCE_S
    while True:
        try:
            return sbatch.wait(1.0)
        except subprocess.TimeoutExpired:
            if interruption.is_asked() and (patience := patience - 1.0) <= 0:
                sbatch.kill()
                interruption.check()
        except commands.TooMuchError as error:
            raise UnclearError(f"sbatch {error}") from None


class Slurm:
    """Slurm; one object for all threads that wait, which share its job-state cache."""

    name: SchedulerName = "slurm"
    runs_elsewhere = True

    def __init__(self) -> None:
        self._states = JobStateCache(ASK_EVERY_S)
        self._lock = FairLock()
        #: how often in a row Slurm refused, and before when no job is submitted (monotonic, s)
        self._refused = 0
        self._again_at_s = 0.0

    @contextmanager
    def submission_lock(self, place: int = 0) -> Iterator[None]:
        """Threads submit one after the other, in the order of their places. While Slurm refuses,
        each attempt waits longer than the last one.
        """
        with self._lock.hold(place):
            interruption.pause(max(0.0, self._again_at_s - time.monotonic()))
            try:
                yield
                self._refused = 0
            except NotNowError:
                longest_s = max(LONGEST_PERIOD_S, ASK_EVERY_S)
                self._again_at_s = time.monotonic() + min(ASK_EVERY_S * 2**self._refused, longest_s)
                self._refused += 1
                raise

    def submit(self, submission: Submission) -> str | None:
        """Give ``job.sh`` to sbatch."""
        paths, avoid = submission.paths, submission.avoid
        options = [f"--job-name={submission.record.job_name}", "--open-mode=append"]
        if avoid:
            options.append(f"--exclude={','.join([*_excluded(paths.script), *avoid])}")
        platform = submission.cell.hardware.platform
        locks = () if submission.lock is None else (submission.lock,)
        return sbatch(paths.script, paths.logs, "slurm-%j.log", platform, *options, locks=locks)

    def find(self, record: SubmissionRecord, trusted_after_s: float) -> Found:
        """Look among this user's jobs of that name."""
        answer = self._states.find(record.job_name, record.unix_time_s, trusted_after_s)
        if answer.job_id is None or record.array_task is None:
            return answer
        array = answer.job_id.partition("_")[0]
        return Found(f"{array}_{record.array_task}", is_absent=False)

    def state(self, job: JobRecord) -> JobState | None:
        """The state from the job-state cache, at most a few periods old."""
        return self._states.state(job.job_id, job.job_name)

    def cancel(self, job: JobRecord) -> str | None:
        """Cancel the job with scancel."""
        return _scancel(*([] if job.job_name is None else [f"--name={job.job_name}"]), job.job_id)

    def cancel_submission(self, record: SubmissionRecord) -> str | None:
        """Cancel the job with scancel, by its name. The tasks of an array share one name, so such a
        task is not cancelled.
        """
        if record.array_task is not None:
            return "it is a task of an array, of which the others go on"
        return _scancel("--me", f"--name={record.job_name}")

    def forget(self, job: JobRecord) -> None:
        """Stop asking for the job."""
        self._states.forget(queries.job_key(job.job_id, job.job_name))

    def forget_submission(self, record: SubmissionRecord) -> None:
        """Stop asking for the name."""
        self._states.forget(record.job_name)


def _excluded(script: Path) -> list[str]:
    """Nodes that the script itself excludes: sbatch's option --exclude would replace them."""
    prefix = "#SBATCH --exclude="
    lines = script.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(prefix).strip("'\"") for line in lines if line.startswith(prefix)]


def _scancel(*which: str) -> str | None:
    problem = None
    for attempt in range(_CANCEL_TRIES):
        try:
            if attempt:
                interruption.pause(_LOOK_EVERY_S)
            command = ["scancel", *which]
            result = commands.run_slurm(command, queries.ANSWER_TIMEOUT_S, interruption.check)
        except (OSError, subprocess.TimeoutExpired, InterruptedRunError) as error:
            return f"scancel: {error}"
        if not result.exit_code:
            return None
        problem = " ".join(result.errors.split()) or "no reason given"
    return problem
