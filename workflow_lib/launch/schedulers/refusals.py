"""What sbatch says when it does not submit a job, and what to do about it."""

from __future__ import annotations

import re

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
    (r"node name", "exclude_nodes", "`sinfo -N` lists the nodes"),
    (r"unrecognized option|doesn't allow|wckey|license", "sbatch_options", "see `man sbatch`"),
    (r"feature|constraint", "constraint", "`sinfo -o %f` lists the nodes' features"),
    (r"gres|gpu", "gpu_type or gpu_request", "`sinfo -o %G` lists the nodes' GPUs"),
    (r"memory", "memory_per_node_gb", "`sinfo -o '%n %m'` lists the nodes' memory in MB"),
    (r"cpu count|processors", "cpus_per_gpu", "`sinfo -o '%n %c'` lists the nodes' CPUs"),
    (r"node configuration|node count|nodes", "nodes", "`sinfo` lists what the partition has"),
    (r"time limit", "time_limit_max_min", "`sinfo -o '%P %l'` lists the limits"),
)
#: a state of Slurm that passes; it was told so before it took the job
_NOT_NOW = re.compile(
    r"connect failure|standby mode|Resource temporarily unavailable|job queue full"
    r"|temporarily unable|temporarily disabled|(Max|Grp)SubmitJob",
    re.IGNORECASE,
)
#: one in which the question got through, perhaps, and the answer did not
_NO_ANSWER = re.compile(
    r"Unable to contact slurm controller|timed out|Zero Bytes were transmitted"
    r"|Message (send|receive) failure|Transport endpoint|Connection (reset|refused|timed out)",
    re.IGNORECASE,
)

#: how sbatch begins what it says itself
_SLURM_SAYS = re.compile(r"sbatch: (error|fatal)")


class SubmissionError(RuntimeError):
    """A job could not be submitted. The message says why and what to change."""


class NotNowError(SubmissionError):
    """A job could not be submitted now; the same may go well later."""

    def __init__(self, message: str, may_have_been_submitted: bool) -> None:
        super().__init__(message)
        #: whether to look for it before it is submitted once more
        self.may_have_been_submitted = may_have_been_submitted


class UnclearError(NotNowError):
    """sbatch failed, and it was not Slurm that said why: a site's wrapper of it may have failed
    before or after the job was submitted.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, may_have_been_submitted=True)


def refused(
    said: str, exit_code: int, platform: str, may_be_submitted: bool = False
) -> SubmissionError:
    """What it means that sbatch ended with ``exit_code``, negative after a signal, and ``said``
    this; ``may_be_submitted`` where it printed an id all the same.
    """
    lines = "; ".join(line.strip() for line in said.splitlines() if line.strip())
    if exit_code < 0:
        return NotNowError(f"sbatch was ended by signal {-exit_code}", True)
    if _NOT_NOW.search(lines):
        return NotNowError(lines, False)
    if _NO_ANSWER.search(lines):
        return NotNowError(lines, True)
    if may_be_submitted or not _SLURM_SAYS.search(lines):
        return UnclearError(f"sbatch failed with exit code {exit_code}: {lines or 'no reason'}")
    return SubmissionError(explain(lines, platform))


def explain(refusal: str, platform: str) -> str:
    """The refusal, and which key of the platform's file mends it, where that is known."""
    if "job array" in refusal.lower():
        return (
            f"Slurm refused the job: {refusal}. This site takes no job array of so many tasks "
            "(`scontrol show config` has MaxArraySize); without one, `snakemake` submits a job a "
            "run"
        )
    for pattern, key, remedy in _REFUSALS:
        if re.search(pattern, refusal, re.IGNORECASE):
            return (
                f"Slurm refused the job: {refusal}. Set {key} in the configuration's "
                f"platforms/{platform}.yaml; {remedy}"
            )
    return f"Slurm refused the job: {refusal}"
