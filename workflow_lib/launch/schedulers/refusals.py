"""Interprets what sbatch says when it does not submit a job, and says what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FAILED = r"(?:Batch job submission failed: )?"
#: Refusals that stay refusals: the whole of a line of sbatch after "sbatch: error: ", as
#: slurm_strerror() and sbatch word it (src/common/slurm_errno.c, src/sbatch/opt.c of Slurm 20.11 to
#: 25.11); which key of the platform's file to change; and how to find a valid value.
_REFUSALS = (
    (
        r"invalid partition specified: .*|Invalid partition name specified"
        r"|No partition specified or system default partition"
        r"|Users? ?('s)? ?group not permitted to use this partition"
        r"|Requested nodes not in this partition|Required partition not available .*"
        r"|Requested partition configuration not available now",
        "partition",
        "`sinfo -o %P` lists them",
    ),
    (
        r"Job violates accounting/QOS policy.*",
        "qos, nodes or time_limit_max_min",
        "`sacctmgr show qos` lists limits",
    ),
    (
        r"Invalid account or account/partition combination specified|Invalid account specified"
        r"|Invalid or unknown association",
        "account",
        "`sacctmgr show assoc user=$USER format=account` lists yours",
    ),
    (
        r"Invalid qos specification.*|Invalid QOS specification.*|Requested account has breached.*",
        "qos",
        "`sacctmgr show assoc user=$USER format=qos` lists yours",
    ),
    (
        r"Requested reservation .*|Access denied to requested reservation",
        "reservation",
        "`scontrol show reservation` lists them",
    ),
    (r"Invalid node (name|list) specified", "exclude_nodes", "`sinfo -N` lists the nodes"),
    (
        r"Invalid wckey specification|Invalid license specification",
        "sbatch_options",
        "see `man sbatch`",
    ),
    (r"Invalid feature specification", "constraint", "`sinfo -o %f` lists the nodes' features"),
    (
        r"Invalid generic resource \(gres\) specification|Invalid GRES specification.*"
        r"|Duplicate generic resource.*|Requested GRES option unsupported.*"
        r"|Invalid Trackable RESource \(TRES\) specification",
        "gpu_type or gpu_request",
        "`sinfo -o %G` lists the nodes' GPUs",
    ),
    (
        r"Memory specification can not be satisfied|Memory required by task is not available",
        "memory_per_node_gb",
        "`sinfo -o '%n %m'` lists the nodes' memory in MB",
    ),
    (
        r"CPU count (per node can not be satisfied|specification invalid)"
        r"|More processors requested than permitted|Task count specification invalid",
        "cpus_per_gpu",
        "`sinfo -o '%n %c'` lists the nodes' CPUs",
    ),
    (
        r"Requested node configuration is not available|Node count specification invalid"
        r"|Requested topology configuration is not available",
        "nodes",
        "`sinfo` lists what the partition has",
    ),
    (
        r"Requested time limit is invalid.*|Invalid time-min specification.*",
        "time_limit_max_min",
        "`sinfo -o '%P %l'` lists the limits",
    ),
)
#: what sbatch says of its own options, without "error:"
_OPTIONS_REFUSED = r"(unrecognized option|option .* doesn't allow|invalid option).*"
_ARRAY_REFUSED = r"Invalid job array specification"
#: Other refusals that stay so, for which no key is known.
_NEVER = r"Access/permission denied|Pathname of a file, directory or other parameter too long"
#: a temporary refusal: Slurm did not take the job
_NOT_NOW = re.compile(
    r"connect failure|standby mode|Resource temporarily unavailable|job queue full"
    r"|temporarily unable|temporarily disabled|(Max|Grp)SubmitJob|MaxJobCount limit reached"
    r"|Rate limit exceeded|System submissions disabled|operation is presently disabled"
    r"|I/O error writing script",
    re.IGNORECASE,
)
#: a lost answer: Slurm may have taken the job
_NO_ANSWER = re.compile(
    r"Unable to contact slurm controller|timed out|Zero Bytes were transmitted"
    r"|Message (send|receive) failure|Transport endpoint|Connection (reset|refused|timed out)"
    r"|Unexpected message received|Communication (connection|shutdown) failure|No route to host"
    r"|Protocol authentication error|munge|Accounting storage error|Slurm internal error"
    r"|Insane message length|I/O stream version number error|Error generating job credential",
    re.IGNORECASE,
)

#: the beginning of sbatch's own messages, the last one with --test-only (src/sbatch/sbatch.c); a
#: wrapper's messages begin otherwise
_SLURM_SAYS = re.compile(r"(?:sbatch: (?:(?:error|fatal): )?|allocation failure: )(.*)")


class SubmissionError(RuntimeError):
    """A job could not be submitted. The message says why and what to change."""


class NotNowError(SubmissionError):
    """A job could not be submitted now; the same may succeed later."""

    def __init__(self, message: str, may_have_been_submitted: bool) -> None:
        super().__init__(message)
        #: whether the caller must look for the job before it submits again
        self.may_have_been_submitted = may_have_been_submitted


class UnclearError(NotNowError):
    """sbatch failed with no message that is known. A site's wrapper of it may have failed before or
    after the job was submitted, and an unknown message of Slurm may be of something that passes.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, may_have_been_submitted=True)


def refused(
    errors: str, exit_code: int, platform: str, may_be_submitted: bool = False
) -> SubmissionError:
    """The error to raise for an sbatch that failed.

    ``errors`` is its standard error. ``exit_code`` is negative after a signal. ``may_be_submitted``
    says whether sbatch printed a job's id although it failed.
    """
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    text = "; ".join(lines)
    if exit_code < 0:
        return NotNowError(f"sbatch was ended by signal {-exit_code}", True)
    if _NOT_NOW.search(text):
        return NotNowError(text, False)
    if _NO_ANSWER.search(text):
        return NotNowError(text, True)
    if not may_be_submitted and (refusal := _advice(lines, platform)) is not None:
        return SubmissionError(f"Slurm refused the job: {text}. {refusal}".rstrip())
    return UnclearError(f"sbatch failed with exit code {exit_code}: {text or 'no reason'}")


def _advice(lines: Sequence[str], platform: str) -> str | None:
    """What to do about a refusal that stays one; None if no line is known to be of such a one."""
    messages = [match[1] for line in lines if (match := _SLURM_SAYS.fullmatch(line))]
    file = f"in the configuration's platforms/{platform}.yaml"

    def says(pattern: str) -> bool:
        return any(
            re.fullmatch(_FAILED + f"(?:{pattern})", message, re.IGNORECASE) for message in messages
        )

    if says(_ARRAY_REFUSED):
        return (
            "This site takes no job array of so many tasks (`scontrol show config` has "
            "MaxArraySize); without one, `snakemake` submits a job a run"
        )
    for pattern, key, remedy in _REFUSALS:
        if says(pattern):
            return f"Set {key} {file}; {remedy}"
    if says(_OPTIONS_REFUSED):
        return f"Set sbatch_options {file}; see `man sbatch`"
    return "" if says(_NEVER) else None
