"""Slurm, through ``sbatch``, ``squeue``, ``sacct`` and ``scancel``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workflow_lib.launch import interruption, questions
from workflow_lib.launch.board import LONGEST_PERIOD_S, Board, Found
from workflow_lib.launch.refusals import NotNowError, SubmissionError, refused
from workflow_lib.launch.turnstile import Turnstile
from workflow_lib.launch.user_directory import user_directory
from workflow_lib.records import Cell, JobState, RunPaths, SubmissionRecord

#: how often Slurm is asked for the states of jobs, by all processes of a user together
ASK_EVERY_S = float(os.environ.get("TRIPTYCH_ASK_SCHEDULER_EVERY_S", "10"))
#: how long scancel, or sbatch once nobody wants the job any more, may take
_PATIENCE_S = 20.0


def sbatch(
    script: Path, logs: Path, log: str, platform: str, *options: str, locks: Sequence[int] = ()
) -> str:
    """Submit a script whose output goes to the file ``log`` in ``logs``; returns the job's id.

    In ``log`` Slurm's patterns hold, such as %j. sbatch keeps the descriptors ``locks`` open, so
    that what they lock stays locked until it has finished, whatever becomes of this process. Raises
    SubmissionError, which names the key of the platform's file where it knows it, and NotNowError.
    """
    if "\\" in str(logs):
        raise SubmissionError(
            f"{logs}: Slurm cannot write its log below a directory with a backslash in "
            "its name; choose another results directory"
        )
    output = str(logs).replace("%", "%%") + f"/{log}"
    try:
        process = subprocess.Popen(
            ["sbatch", "--parsable", f"--output={output}", *options, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=locks,
            process_group=0,  # Ctrl-C must not tear it
        )
    except FileNotFoundError:
        raise SubmissionError(
            "sbatch is not on the path: run this on a login node of the cluster, or load its "
            "Slurm module first; `--profile local` runs on this machine"
        ) from None
    with process:
        said, errors = _communicate(process)
    if process.returncode != 0:
        raise refused(errors, process.returncode, platform)
    return said.strip().partition(";")[0]


def _communicate(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What sbatch prints. Raises InterruptedRunError where it hangs and nobody wants the job."""
    patience = _PATIENCE_S
    while True:
        try:
            return process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired:
            if interruption.is_asked() and (patience := patience - 1.0) <= 0:
                process.kill()
                process.communicate()
                interruption.check()


class Slurm:
    """Slurm, asked for the states of jobs once for all of a user's processes."""

    runs_elsewhere = True
    #: made when it is first asked
    _board: Board | None = None
    _refused = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """This user's processes submit one after the other, and rarely while Slurm refuses."""
        with Turnstile(user_directory()) as turnstile:
            try:
                yield
            except NotNowError:
                self._refused += 1
                longest_s = max(LONGEST_PERIOD_S, ASK_EVERY_S)
                turnstile.close_for(min(ASK_EVERY_S * 2 ** (self._refused - 1), longest_s))
                raise

    def submit(
        self,
        paths: RunPaths,
        cell: Cell,
        submission: SubmissionRecord,
        lock: int | None = None,
        avoid: Sequence[str] = (),
    ) -> str:
        """Give ``job.sh`` to sbatch."""
        options = [f"--job-name={submission.job_name}", "--open-mode=append"]
        if avoid:
            options.append(f"--exclude={','.join([*_excluded(paths.script), *avoid])}")
        platform = cell.hardware.platform
        locks = () if lock is None else (lock,)
        return sbatch(paths.script, paths.logs, "slurm-%j.log", platform, *options, locks=locks)

    def find(self, submission: SubmissionRecord, trusted_after_unix_s: float) -> Found:
        """Among this user's jobs of that name."""
        name = submission.job_name
        found = self._asked().find(name, submission.unix_time_s, trusted_after_unix_s)
        if found.job_id is None or submission.array_task is None:
            return found
        array = found.job_id.partition("_")[0]
        return Found(f"{array}_{submission.array_task}", is_absent=False)

    def state(self, job_id: str, name: str | None = None) -> JobState | None:
        """What the board says, which this user's waiting processes share."""
        return self._asked().state(job_id, name)

    def cancel(self, job_id: str, name: str | None = None) -> str | None:
        """Through scancel."""
        return _scancel(*([] if name is None else [f"--name={name}"]), job_id)

    def cancel_submission(self, submission: SubmissionRecord) -> str | None:
        """Through scancel, by the job's name, which no other has; but an array's tasks share it."""
        if submission.array_task is not None:
            return "it is a task of an array, of which the others go on"
        return _scancel("--me", f"--name={submission.job_name}")

    def forget(self, job_id: str, name: str | None = None) -> None:
        """Take the job, or the name that was looked for, off the board."""
        if self._board is not None:
            self._board.forget(questions.job_key(job_id, name))

    def is_over(self, state: JobState | None) -> bool:
        """A requeued job is not over: it waits for its next start."""
        return questions.is_over(state)

    def will_start_again(self, state: JobState | None) -> bool:
        """Slurm requeues by itself after a node failure and, if so configured, a preemption."""
        return questions.will_start_again(state)

    def is_held_unlaunched(self, state: JobState | None) -> bool:
        """Slurm puts such a job back into the queue, and holds it there."""
        return questions.is_held_unlaunched(state)

    def _asked(self) -> Board:
        if self._board is None:
            self._board = Board(ASK_EVERY_S)
        return self._board


def _excluded(script: Path) -> list[str]:
    """Nodes that the script itself excludes, which an option of sbatch would replace."""
    prefix = "#SBATCH --exclude="
    lines = script.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(prefix).strip("'\"") for line in lines if line.startswith(prefix)]


def _scancel(*which: str) -> str | None:
    try:
        done = subprocess.run(
            ["scancel", *which],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            process_group=0,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"scancel: {error}"
    return " ".join(done.stderr.split()) or "no reason given" if done.returncode else None
