"""Why a job ended, according to the scheduler and the job itself."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from workflow_lib.launch.end.evidence import Evidence
from workflow_lib.launch.end.logs import end_of
from workflow_lib.launch.end.own_words import own_words
from workflow_lib.launch.processes import signal_name
from workflow_lib.launch.schedulers.queries import is_held_unlaunched, word
from workflow_lib.records import EndedRecord, JobState, Outcome, RunPaths, user_name

#: Slurm's states of jobs that may have ended too suddenly to report why
#: (slurm.schedmd.com/job_state_codes.html)
_ENDS = {
    "TIMEOUT": (Outcome.TIMEOUT, "the job reached its time limit"),
    "DEADLINE": (Outcome.TIMEOUT, "the job reached its deadline"),
    "NODE_FAIL": (Outcome.NODE_FAILURE, "a node of the job failed"),
    "BOOT_FAIL": (Outcome.NODE_FAILURE, "a node of the job failed to boot"),
    "LAUNCH_FAILED": (Outcome.NODE_FAILURE, "a node could not launch the job"),
    "RECONFIG_FAIL": (Outcome.NODE_FAILURE, "a node could not be configured for the job"),
    "PREEMPTED": (Outcome.PREEMPTED, "the job was preempted"),
    "CANCELLED": (Outcome.CANCELLED, "the job was cancelled"),
    "REVOKED": (Outcome.CANCELLED, "another cluster took the job"),
    "OUT_OF_MEMORY": (Outcome.OUT_OF_MEMORY, "a process of the job ran out of host memory"),
}
#: the exit code that Slurm reports if memory ran out (SIG_OOM in its slurm.h)
_OUT_OF_MEMORY_CODE = "0:125"
#: The signal in the exit code, 0:53 or 15:53, if slurmd could not begin the script, mostly as it
#: cannot write the job's log: the lowest 7 bits of slurmd's error 4021. No script is ended by it.
_NOT_STARTED = "53"
#: exit codes of the job script before it can write its end record (see job.sh.j2)
_SCRIPT_EXITS = {
    72: "it could not enter the repository",
    73: "it could not make the run's directories",
    74: "it could not load a module",
    76: "the results were moved or copied after it was rendered",
    77: "the array's copy of it belongs to another user",
    78: "the code that it was to run is not there any more",
}
#: stages of the job that fail only because of telemetry, and what the cause says then
_BEFORE_TRAINING = {
    "telemetry": "telemetry did not start",
    "cool_down": "telemetry ended, or reported no temperature, before training began",
    "baseline": "telemetry ended before training began",
}
#: What Slurm writes into a job's log if a node failed under a step. The job itself may go on and
#: end as FAILED. srun also names the node.
_CANCELLED_FOR_A_NODE = re.compile(r"^slurmstepd: .*CANCELLED AT \S+ DUE TO NODE FAILURE", re.M)
_FAILED_NODE = re.compile(r"^srun: error: Node failure on (\S+)", re.M)


def ended_from_outside(evidence: Evidence) -> tuple[Outcome, str] | None:
    """The outcome and cause if something outside the job ended it; None if nothing is known to
    have done so.
    """
    ended, job = evidence.ended, evidence.state
    if ended is not None and ended.failed_stage == "time_limit":
        return Outcome.TIMEOUT, "the job came within a minute of its time limit and was ended"
    if job is not None:
        state = word(job)
        if state in _ENDS:
            outcome, cause = _ENDS[state]
            if outcome is Outcome.NODE_FAILURE:
                cause += f": {job.failed_node}" if job.failed_node else "; which one is not known"
            return outcome, f"{cause}{_canceller(job.state)} ({_in_words(job)})"
        if is_held_unlaunched(job):
            cause = "no node could launch the job, and Slurm held it until an admin releases it"
            return Outcome.NODE_FAILURE, f"{cause} ({_in_words(job)})"
        if _OUT_OF_MEMORY_CODE in (job.exit_code, job.step_exit_code):
            outcome, cause = _ENDS["OUT_OF_MEMORY"]
            return outcome, f"{cause} ({_in_words(job)})"
    if (lost := lost_nodes(evidence)) is not None:
        named = f"{', '.join(lost)} (srun says so)" if lost else "which one is not known"
        return Outcome.NODE_FAILURE, f"a node failed under the job: {named}"
    if ended is not None and ended.failed_stage == "interrupted":
        return Outcome.CANCELLED, "the job was asked to end by a signal"
    return None


def lost_nodes(evidence: Evidence) -> tuple[str, ...] | None:
    """The nodes that failed under a step of the job, as Slurm wrote into its logs.

    Returns () if a node failed and the logs do not name it, and None if no node failed.
    """
    text = ""
    paths = evidence.paths
    for log in (paths.job_log(evidence.job_id), paths.training_log):
        with contextlib.suppress(OSError):  # a job that never began has none
            text += end_of(log) + "\n"
    if named := _FAILED_NODE.findall(text):
        return tuple(sorted(set(named)))
    return () if _CANCELLED_FOR_A_NODE.search(text) else None


def without_end_record(evidence: Evidence) -> str:
    """The cause for a job that left no ``ended.json``: everything that is known of its end."""
    paths, job = evidence.paths, evidence.state
    scheduler = "says nothing" if job is None else f"says {_in_words(job)}"
    cause = f"the job ended without an end record, ended.json (the scheduler {scheduler})"
    log = paths.job_log(evidence.job_id)
    if job is not None and job.exit_code is not None:
        code, _, number = job.exit_code.partition(":")
        if number == _NOT_STARTED:
            cause += f": its node could not start the script; check that it can write {log}"
        elif number.isdecimal() and int(number):
            cause += f": its script was ended by {signal_name(int(number))}"
        elif code.isdecimal() and int(code) in _SCRIPT_EXITS:
            cause += f": {_SCRIPT_EXITS[int(code)]}"
    return f"{cause}; " + (_told_by(log) if log.exists() else f"see {paths.logs}")


def failed_stage(paths: RunPaths, ended: EndedRecord) -> tuple[Outcome, str]:
    """The outcome and cause of a job that failed in one of its stages, if nothing outside ended it
    and no rank left a record.
    """
    if ended.failed_stage in _BEFORE_TRAINING:
        words = own_words(paths.logs / "telemetry.log")
        cause = f"{_BEFORE_TRAINING[ended.failed_stage]}{words.where}: {words.said}"
        return Outcome.TELEMETRY_INVALID, cause
    if ended.failed_stage == "gpu_limits":
        words = own_words(paths.logs / "gpu-limits.log")
        return Outcome.ERROR, f"limits could not be set{words.where}: {words.said}"
    if ended.training_exit_code is not None:
        return Outcome.ERROR, (
            f"training ended with {exit_code(ended.training_exit_code)} and no rank left a record "
            f"of an error; {_told_by(paths.logs / 'training.log')}"
        )
    log = paths.job_log(ended.job_id)
    told = _told_by(log) if log.exists() else f"see {paths.logs}"
    return Outcome.ERROR, f"the job failed in its stage {ended.failed_stage!r}; {told}"


def _told_by(log: Path) -> str:
    """A clause with what a log says of a failure."""
    words = own_words(log)
    return f"{log} says{words.where}: {words.said}"


def exit_code(code: int) -> str:
    """An exit code of bash in words. Above 128 it is 128 + the number of a signal."""
    return f"exit code {code}" if code <= 128 else signal_name(code - 128)


def _canceller(state: str) -> str:
    """Who cancelled the job, from "CANCELLED by 1000": a name if this machine knows one, else the
    user id; empty for other states.
    """
    if (match := re.fullmatch(r"CANCELLED by (\d+)", state)) is None:
        return ""
    return f" by {user_name(int(match[1]))}"


def _in_words(job: JobState) -> str:
    words = [job.state]
    if job.reason not in (None, "", "None"):
        words.append(f"reason {job.reason}")
    for what, code in (("exit code", job.exit_code), ("steps'", job.step_exit_code)):
        if code not in (None, "", "0:0"):
            words.append(f"{what} {code}")
    return ", ".join(words)
