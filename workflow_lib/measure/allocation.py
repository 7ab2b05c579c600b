"""Where the command may run: this machine, or the nodes of a job of Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: variables of Slurm that say where its controller is; srun takes options of all others
_ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET", "SLURM_SACK_KEY")


class Allocation(NamedTuple):
    """The nodes that are sampled."""

    job_id: str | None
    nodes: int
    #: whether this process is one of several tasks of a step, and not the first: the first one
    #: measures for all
    is_other_task: bool = False
    #: whether this process runs outside of the job
    is_elsewhere: bool = False

    @property
    def prefix(self) -> list[str]:
        """What starts a process on each node; empty on one node, where this process is."""
        if self.nodes == 1 and not self.is_elsewhere:
            return []
        return [
            *("srun", f"--jobid={self.job_id}", "--overlap", "--mem=0", "--cpus-per-task=1"),
            *(f"--nodes={self.nodes}", f"--ntasks={self.nodes}", "--ntasks-per-node=1"),
            *("--kill-on-bad-exit=0", "--input=none", "--job-name=triptych"),
        ]


def find_allocation(environment: Mapping[str, str]) -> Allocation:
    """The allocation that variables of Slurm tell; without them, this machine."""
    job_id = environment.get("SLURM_JOB_ID")
    if job_id is None:
        return Allocation(None, 1)
    nodes = int(environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or 1)
    # A batch script and an interactive shell have no number of a task but 0.
    return Allocation(job_id, nodes, environment.get("SLURM_PROCID", "0") != "0")


def sampler_environment(
    environment: Mapping[str, str], job_id: str | None, package: str | None
) -> dict[str, str]:
    """The variables of samplers: without those that are options of srun, such as the tasks that
    share a GPU, and with where ``package`` is found, unless it is in the file that runs."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in (*_ACCESS, "SLURM_JOB_ID", "SLURMD_NODENAME")
        or not name.startswith(("SLURM_", "SRUN_"))
    }
    if job_id:
        kept["TRIPTYCH_JOB_ID"] = job_id
    if package:
        kept["PYTHONPATH"] = package
    return kept
