"""Starts jobs on this machine through submitit's local controller, which outlives the process that
waits for them.

submitit pickles functions for its own jobs; here it starts the run's job script. The result is read
from the files that the script leaves.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow_lib.launch import open_files
from workflow_lib.launch.processes import is_running
from workflow_lib.launch.schedulers.queries import FINISHED
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.schedulers.scheduler import Found, SchedulerName, Submission
from workflow_lib.records.outcomes import JobRecord, JobState, SubmissionRecord

#: a local job is ended after this long: the local platform is for small cells
LIMIT_MIN = 60


class Local:
    """This machine."""

    name: SchedulerName = "local"
    runs_elsewhere = False

    @contextmanager
    def submission_lock(self, place: int = 0) -> Iterator[None]:
        """No lock: jobs on this machine may be started at once."""
        yield

    def submit(self, submission: Submission) -> str:
        """Start ``job.sh`` under a controller that ends it at the time limit."""
        paths, lock = submission.paths, submission.lock
        if re.search(r"%[jtAa]", str(paths.logs)):
            raise SubmissionError(
                f"{paths.logs}: submitit reads %j, %t, %A and %a in a path as numbers of a job; "
                "choose another results directory"
            )
        # submitit hides all GPUs unless told how many. The job gets the GPUs of this process.
        default = ",".join(str(index) for index in range(submission.cell.ranks_per_node))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", default)
        name = f"TRIPTYCH_JOB={submission.record.job_name}"
        command = ["env", f"CUDA_VISIBLE_DEVICES={visible}", name, "bash", str(paths.script)]
        start = [sys.executable, "-m", "workflow_lib.launch.schedulers.local_start"]
        result = subprocess.run(
            open_files.as_found([*start, str(paths.logs), shlex.join(command), str(LIMIT_MIN)]),
            capture_output=True,
            text=True,
            check=False,
            # Not this process's own: it may have been started without one.
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=() if lock is None else (lock,),
        )
        if result.returncode or not result.stdout.isdigit():
            reason = (
                result.stderr.strip() or f"it ended with code {result.returncode} and no message"
            )
            raise SubmissionError(f"submitit started no job: {reason}")
        return result.stdout

    def find(self, record: SubmissionRecord, trusted_after_s: float) -> Found:
        """Look for the job's controller among the processes of this machine."""
        name = f"TRIPTYCH_JOB={record.job_name}".encode()
        for directory in Path("/proc").iterdir():
            if directory.name.isdigit():
                # Other users' processes cannot be read, and some are gone by now.
                with contextlib.suppress(OSError):
                    controls = b"submitit.local._local" in (directory / "cmdline").read_bytes()
                    if controls and name in (directory / "environ").read_bytes():
                        return Found(directory.name, is_absent=False)
        return Found(None, is_absent=True)

    def state(self, job: JobRecord) -> JobState | None:
        """RUNNING while the controller's process runs, else FINISHED."""
        return JobState("RUNNING" if _controls(job.job_id) else FINISHED)

    def cancel(self, job: JobRecord) -> str | None:
        """Send SIGTERM to the controller, which passes it on to the script. A script that was
        started by hand gets it directly.
        """
        _terminate(job.job_id)
        return None

    def cancel_submission(self, record: SubmissionRecord) -> str | None:
        """As cancel."""
        if (job_id := self.find(record, 0.0).job_id) is not None:
            _terminate(job_id)
        return None

    def forget(self, job: JobRecord) -> None:
        """Nothing was kept."""

    def forget_submission(self, record: SubmissionRecord) -> None:
        """Nothing was kept."""


def _terminate(job_id: str) -> None:
    if _controls(job_id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(job_id), signal.SIGTERM)


def _controls(job_id: str) -> bool:
    """Whether the process runs and belongs to a job; its id may have been reused since."""
    try:
        command = Path(f"/proc/{job_id}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was read
        return False
    # submitit's controller, or the script itself if it was started by hand.
    return (b"submitit" in command or b"job.sh" in command) and is_running(int(job_id))
