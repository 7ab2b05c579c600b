"""Interprets what sbatch says when it does not submit a job, and says what to do about it."""

from __future__ import annotations

import re

#: sbatch's message, which key of the platform's file to change, and how to find a valid value
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
#: a temporary refusal: Slurm did not take the job
_NOT_NOW = re.compile(
    r"connect failure|standby mode|Resource temporarily unavailable|job queue full"
    r"|temporarily unable|temporarily disabled|(Max|Grp)SubmitJob",
    re.IGNORECASE,
)
#: a lost answer: Slurm may have taken the job
_NO_ANSWER = re.compile(
    r"Unable to contact slurm controller|timed out|Zero Bytes were transmitted"
    r"|Message (send|receive) failure|Transport endpoint|Connection (reset|refused|timed out)",
    re.IGNORECASE,
)

#: the beginning of sbatch's own messages; a wrapper's messages begin otherwise
_SLURM_SAYS = re.compile(r"sbatch: (error|fatal)")


class SubmissionError(RuntimeError):
    """A job could not be submitted. The message says why and what to change."""


class NotNowError(SubmissionError):
    """A job could not be submitted now; the same may succeed later."""

    def __init__(self, message: str, may_have_been_submitted: bool) -> None:
        super().__init__(message)
        #: whether the caller must look for the job before it submits again
        self.may_have_been_submitted = may_have_been_submitted


class UnclearError(NotNowError):
    """sbatch failed without a message of Slurm. A site's wrapper of sbatch may have failed before
    or after the job was submitted.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, may_have_been_submitted=True)


def refused(
    said: str, exit_code: int, platform: str, may_be_submitted: bool = False
) -> SubmissionError:
    """The error to raise for an sbatch that failed.

    ``said`` is its standard error. ``exit_code`` is negative after a signal. ``may_be_submitted``
    says whether sbatch printed a job's id although it failed.
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
    """A message with the refusal and, if known, which key of the platform's file to change."""
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
