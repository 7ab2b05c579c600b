"""What the scheduler, and the job itself, say of why the job ended."""

from __future__ import annotations

import contextlib
import pwd
import re
import shutil

from workflow_lib.launch.end.logs import end_of, last_line
from workflow_lib.launch.processes import signal_name
from workflow_lib.launch.schedulers.queries import is_held_unlaunched
from workflow_lib.records import EndedRecord, JobState, Outcome, RunPaths

#: how Slurm calls an end that the job itself may not have lived to report
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
#: what Slurm gives as the exit code where memory ran out (SIG_OOM in its slurm.h)
_OUT_OF_MEMORY_CODE = "0:125"
#: what the script exits with before it can leave a last word (see job.sh.j2)
_SCRIPT_EXITS = {
    72: "it could not enter the repository",
    73: "it could not make the run's directories",
    74: "it could not load a module",
}
#: stages of the job that only telemetry can fail, and what to say then
_BEFORE_TRAINING = {
    "telemetry": "telemetry did not start",
    "cool_down": "telemetry ended, or told no temperature, before training began",
    "baseline": "telemetry ended before training began",
}
#: What Slurm writes where a node failed under a step: the job itself may go on, and then be FAILED;
#: and what its srun does, which names the node.
_CANCELLED_FOR_A_NODE = re.compile(r"^slurmstepd: .*CANCELLED AT \S+ DUE TO NODE FAILURE", re.M)
_FAILED_NODE = re.compile(r"^srun: error: Node failure on (\S+)", re.M)
#: a file system with less than this, in bytes, takes no record any more
_FULL_BELOW = 65536


def taken_away(
    paths: RunPaths, ended: EndedRecord | None, said: JobState | None, job_id: str | None
) -> tuple[Outcome, str] | None:
    """Who or what ended the job from outside; None where nobody did, as far as is known."""
    if ended is not None and ended.failed_stage == "time_limit":
        return Outcome.TIMEOUT, "the job came within a minute of its time limit and was ended"
    if said is not None:
        state = said.state.partition(" ")[0].rstrip("+")
        if state in _ENDS:
            outcome, cause = _ENDS[state]
            if outcome is Outcome.NODE_FAILURE:
                cause += f": {said.failed_node}" if said.failed_node else "; which, is not said"
            return outcome, f"{cause}{_canceller(said.state)} ({_in_words(said)})"
        if is_held_unlaunched(said):
            cause = "no node could launch the job, and Slurm held it until somebody lets it go"
            return Outcome.NODE_FAILURE, f"{cause} ({_in_words(said)})"
        if _OUT_OF_MEMORY_CODE in (said.exit_code, said.step_exit_code):
            outcome, cause = _ENDS["OUT_OF_MEMORY"]
            return outcome, f"{cause} ({_in_words(said)})"
    if (lost := lost_nodes(paths, job_id)) is not None:
        named = f"{', '.join(lost)} (srun says so)" if lost else "which, is not said"
        return Outcome.NODE_FAILURE, f"a node failed under the job: {named}"
    if ended is not None and ended.failed_stage == "interrupted":
        return Outcome.CANCELLED, "the job was asked to end by a signal"
    return None


def lost_nodes(paths: RunPaths, job_id: str | None) -> tuple[str, ...] | None:
    """Which nodes failed under a step of the job, as Slurm wrote into its logs; none where it did
    not say which, and None where none did.
    """
    text = ""
    for name in (f"slurm-{job_id}.log", "training.log"):
        with contextlib.suppress(OSError):  # a job that never began has none
            text += end_of(paths.logs / name) + "\n"
    if named := _FAILED_NODE.findall(text):
        return tuple(sorted(set(named)))
    return () if _CANCELLED_FOR_A_NODE.search(text) else None


def without_last_word(paths: RunPaths, said: JobState | None, job_id: str | None) -> str:
    """Of a job that left no ``ended.json``: what is known of its end."""
    scheduler = "says nothing" if said is None else f"says {_in_words(said)}"
    cause = f"the job ended without its last word, ended.json (the scheduler {scheduler})"
    if said is not None and said.exit_code is not None:
        code, _, number = said.exit_code.partition(":")
        if number.isdecimal() and int(number):
            cause += f": its script was ended by {signal_name(int(number))}"
        elif code.isdecimal() and int(code) in _SCRIPT_EXITS:
            cause += f": {_SCRIPT_EXITS[int(code)]}"
    if shutil.disk_usage(paths.directory).free < _FULL_BELOW:
        cause += f"; the file system of {paths.directory} is full"
    log = paths.logs / f"slurm-{job_id}.log"
    return f"{cause}; " + (f"{log} ends: {last_line(log)}" if log.exists() else f"see {paths.logs}")


def failed_stage(paths: RunPaths, ended: EndedRecord) -> tuple[Outcome, str]:
    """Of a job that nobody took away and whose ranks left nothing: in which stage it failed."""
    if ended.failed_stage in _BEFORE_TRAINING:
        said = last_line(paths.logs / "telemetry.log")
        return Outcome.TELEMETRY_INVALID, f"{_BEFORE_TRAINING[ended.failed_stage]}: {said}"
    if ended.training_exit_code is not None:
        log = paths.logs / "training.log"
        return Outcome.ERROR, (
            f"training ended with {exit_code(ended.training_exit_code)} and no rank left a record "
            f"of an error; the last line of {log}: {last_line(log)}"
        )
    return Outcome.ERROR, f"the job failed in its stage {ended.failed_stage!r}; see {paths.logs}"


def exit_code(code: int) -> str:
    """An exit code as bash gives it: above 128 it was a signal."""
    return f"exit code {code}" if code <= 128 else signal_name(code - 128)


def _canceller(state: str) -> str:
    """Of "CANCELLED by 1000" who that is, by name where this machine knows one."""
    if (match := re.fullmatch(r"CANCELLED by (\d+)", state)) is None:
        return ""
    try:
        return f" by {pwd.getpwuid(int(match[1])).pw_name}"
    except (KeyError, OverflowError):
        return f" by user {match[1]}"


def _in_words(said: JobState) -> str:
    words = [said.state]
    if said.reason not in (None, "", "None"):
        words.append(f"reason {said.reason}")
    for what, code in (("exit code", said.exit_code), ("steps'", said.step_exit_code)):
        if code not in (None, "", "0:0"):
            words.append(f"{what} {code}")
    return ", ".join(words)
