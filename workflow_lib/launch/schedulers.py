"""Submits a rendered script to Slurm or to this machine, and tells what became of the job.

On this machine jobs are submitit's. It pickles functions for its own jobs; none is pickled here.
What is submitted is the script that lies in the run directory, and its result is read from the
files that it leaves.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

import submitit

from workflow_lib.launch.board import VANISHED, Board
from workflow_lib.launch.processes import is_running
from workflow_lib.records import Cell, RunPaths

#: how often Slurm is asked for the states of jobs, by all processes of a user together
ASK_EVERY_S = float(os.environ.get("TRIPTYCH_ASK_SCHEDULER_EVERY_S", "10"))
#: a local job is ended after this long: the local platform is for small cells
LOCAL_LIMIT_MIN = 60
#: what sbatch says, and which key of the platform's file mends it
_REFUSALS = (
    (
        r"invalid partition|use this partition|required partition",
        "partition",
        "`sinfo -o %P` lists them",
    ),
    (
        r"violates accounting/qos policy",
        "qos, nodes or time_limit_max_min",
        "`sacctmgr show qos` lists limits",
    ),
    (r"account", "account", "`sacctmgr show assoc user=$USER format=account` lists yours"),
    (r"qos", "qos", "`sacctmgr show assoc user=$USER format=qos` lists yours"),
    (r"reservation", "reservation", "`scontrol show reservation` lists them"),
    (r"feature|constraint", "constraint", "`sinfo -o %f` lists the nodes' features"),
    (r"gres|gpu", "gpu_type or gpu_request", "`sinfo -o %G` lists the nodes' GPUs"),
    (r"memory", "memory_per_node_gb", "`sinfo -o '%n %m'` lists the nodes' memory in MB"),
    (r"cpu count|processors", "cpus_per_gpu", "`sinfo -o '%n %c'` lists the nodes' CPUs"),
    (r"node configuration|node count|nodes", "nodes", "`sinfo` lists what the partition has"),
    (r"time limit", "time_limit_max_min", "`sinfo -o '%P %l'` lists the limits"),
)


class SubmissionError(RuntimeError):
    """A job could not be submitted. The message says why and what to change."""


class Scheduler(Protocol):
    """What the waiting process asks of Slurm or of this machine."""

    #: whether jobs run on other machines, whose files may be seen here only later
    runs_elsewhere: bool

    def submit(self, paths: RunPaths, cell: Cell) -> str:
        """Submit the run's script; returns the job's id. Raises SubmissionError."""

    def state(self, job_id: str) -> str | None:
        """The scheduler's word for the job's state; None where it cannot tell now."""

    def forget(self, job_id: str) -> None:
        """Nobody waits for the job any more."""

    def is_over(self, state: str | None) -> bool:
        """Whether a job in that state has ended for good."""

    def will_start_again(self, state: str | None) -> bool:
        """Whether a job that has run and is in that state was put back into the queue."""


class Slurm:
    """Slurm, through ``sbatch``, ``squeue`` and ``sacct``."""

    _OVER: tuple[str, ...] = ("COMPLETED", "FAILED", "TIMEOUT", "DEADLINE", "NODE_FAIL", VANISHED)
    _OVER += ("BOOT_FAIL", "PREEMPTED", "CANCELLED", "OUT_OF_MEMORY", "REVOKED")
    _QUEUED = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")

    runs_elsewhere = True
    #: made when it is first asked
    _board: Board | None = None

    def submit(self, paths: RunPaths, cell: Cell) -> str:
        """Give ``job.sh`` to sbatch."""
        if shutil.which("sbatch") is None:
            raise SubmissionError(
                "sbatch is not on the path: run this on a login node of the cluster, or load its "
                "Slurm module first; `--profile local` runs on this machine"
            )
        if "\\" in str(paths.logs):
            raise SubmissionError(
                f"{paths.logs}: Slurm cannot write its log below a directory with a backslash in "
                "its name; choose another results directory"
            )
        log = str(paths.logs).replace("%", "%%") + "/slurm-%j.log"
        done = subprocess.run(
            ["sbatch", "--parsable", f"--output={log}", str(paths.script)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            refusal = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
            raise SubmissionError(_explain(refusal or "no reason given", cell.hardware.platform))
        return done.stdout.strip().partition(";")[0]

    def state(self, job_id: str) -> str | None:
        """What the board says, which this user's waiting processes share."""
        if self._board is None:
            self._board = Board(ASK_EVERY_S)
        return self._board.state(job_id)

    def forget(self, job_id: str) -> None:
        """Take the job off the board."""
        if self._board is not None:
            self._board.forget(job_id)

    def is_over(self, state: str | None) -> bool:
        """A requeued job is not over: it waits for its next start."""
        return _word(state) in self._OVER

    def will_start_again(self, state: str | None) -> bool:
        """Slurm requeues by itself after a node failure and, if so configured, a preemption."""
        return _word(state) in self._QUEUED


def _word(state: str | None) -> str:
    """The state without what Slurm adds to it, as in "CANCELLED by 0"."""
    return (state or "").partition(" ")[0].rstrip("+")


def _explain(refusal: str, platform: str) -> str:
    for pattern, key, remedy in _REFUSALS:
        if re.search(pattern, refusal, re.IGNORECASE):
            return (
                f"Slurm refused the job: {refusal}. Set {key} in the configuration's "
                f"platforms/{platform}.yaml; {remedy}"
            )
    return f"Slurm refused the job: {refusal}"


class Local:
    """This machine, through submitit's local controller, which outlives the process that waits."""

    runs_elsewhere = False

    def submit(self, paths: RunPaths, cell: Cell) -> str:
        """Start ``job.sh`` under a controller that ends it at the time limit."""
        executor = submitit.LocalExecutor(folder=paths.logs)
        executor.update_parameters(timeout_min=LOCAL_LIMIT_MIN, stderr_to_stdout=True)
        # submitit hides all GPUs unless told how many; let the job see what this process may see.
        default = ",".join(str(index) for index in range(cell.ranks_per_node))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", default)
        command = ["env", f"CUDA_VISIBLE_DEVICES={visible}", "bash", str(paths.script)]
        return str(executor._submit_command(shlex.join(command)).job_id)

    def state(self, job_id: str) -> str | None:
        """RUNNING while the controller's process is there, else FINISHED."""
        try:
            command = Path(f"/proc/{job_id}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was read
            return "FINISHED"
        # submitit's controller, or the script itself where it was started by hand.
        ours = b"submitit" in command or b"job.sh" in command
        runs = ours and is_running(int(job_id))
        return "RUNNING" if runs else "FINISHED"

    def forget(self, job_id: str) -> None:
        """Nothing was kept."""

    def is_over(self, state: str | None) -> bool:
        """A process that is gone does not come back."""
        return state == "FINISHED"

    def will_start_again(self, state: str | None) -> bool:
        """Nobody queues anything here."""
        return False


def choose(name: str) -> Scheduler:
    """The scheduler that a platform's file names: ``slurm`` or ``local``."""
    return Slurm() if name == "slurm" else Local()
