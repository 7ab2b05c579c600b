"""Why a job ended, according to the scheduler and the job itself."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from workflow_lib import records
from workflow_lib.launch import gpu_faults
from workflow_lib.launch.end import rank_ends
from workflow_lib.launch.end.log_errors import first_error, tail
from workflow_lib.launch.end.rank_ends import RankEnds
from workflow_lib.launch.gpu_faults import GpuFault
from workflow_lib.launch.processes import signal_name
from workflow_lib.launch.schedulers.queries import is_held_unlaunched, word
from workflow_lib.records import (
    EndedRecord,
    JobRecord,
    JobState,
    Outcome,
    RankRecord,
    RunPaths,
    StopRecord,
    SuspensionRecord,
    TelemetryStart,
    user_name,
)

#: a file system with less free space than this, in bytes, is called full
_FULL_BELOW = 65536

_Record = TypeVar("_Record", EndedRecord, StopRecord, SuspensionRecord)


@dataclass(frozen=True)
class Evidence:
    """The files that a run left, and what the scheduler says of its job."""

    paths: RunPaths
    #: the job's end record; null if there is none that can be read
    ended: EndedRecord | None
    #: the job's state from the scheduler; null if the scheduler does not know it
    state: JobState | None
    job_id: str | None
    #: why the job was stopped early; null if it was not
    stopped: StopRecord | None
    #: for how long the job was suspended; null if it was not
    suspended: SuspensionRecord | None
    ranks: RankEnds
    #: the likeliest cause first
    faults: tuple[GpuFault, ...]
    #: why limits of GPUs were not in force throughout training; see gpu_faults.not_kept
    limits_not_kept: str
    #: which GPUs may still have the run's limits; see gpu_faults.left
    limits_left: str
    #: the directory, of the run's files or of its logs, whose file system is full; null if there is
    #: none. A quota that is used up is not seen
    full: Path | None
    #: the checksums of the code that the job's parts recorded; null for a part that recorded none
    code: frozenset[str | None]
    #: records that could not be read, and why
    damaged: tuple[str, ...]

    @property
    def trained(self) -> bool:
        """Whether training and all other stages of the job succeeded."""
        ended = self.ended
        return ended is not None and ended.failed_stage is None and ended.training_exit_code == 0

    def fault_of(self, node: str) -> GpuFault | None:
        """The likeliest fault of a node's GPUs; None if they had none."""
        return next((fault for fault in self.faults if fault.node == node), None)


def gather(paths: RunPaths, state: JobState | None) -> Evidence:
    """Read the files that the run left.

    Raises records.RecordError if its ``job.json`` cannot be read.
    """
    unread: list[str] = []
    ended = _read(paths.ended, EndedRecord, unread)
    stopped = _read(paths.stopped, StopRecord, unread)
    suspended = _read(paths.suspended, SuspensionRecord, unread)
    job = records.read_if_there(paths.job, JobRecord)
    ranks = rank_ends.read(paths)
    faults, unread_events = gpu_faults.find(paths)
    not_kept = left = ""
    try:
        not_kept = gpu_faults.not_kept(paths, ended.nodes if ended else ())
        left = gpu_faults.left(paths)
    except records.RecordError as error:
        not_kept = f"what became of the GPUs' limits cannot be read: {error}"
    return Evidence(
        paths=paths,
        ended=ended,
        state=state,
        job_id=ended.job_id if ended else (job.job_id if job else None),
        stopped=stopped,
        suspended=suspended,
        ranks=ranks,
        faults=tuple(faults),
        limits_not_kept=not_kept,
        limits_left=left,
        full=_full(paths),
        code=frozenset(_code(paths, ended)),
        damaged=(*unread, *ranks.damaged, *unread_events),
    )


def _code(paths: RunPaths, ended: EndedRecord | None) -> Iterator[str | None]:
    """The checksum of the code that each part of the job recorded."""
    if ended is not None:
        yield ended.code_sha256
    # Damaged records are named by those who need them.
    with suppress(records.RecordError, FileNotFoundError):
        began = records.read_json(paths.environment)
        code = began.get("code_sha256") if isinstance(began, dict) else None
        yield code if isinstance(code, str) else None
    for path in paths.steps.glob("rank*.json"):
        with suppress(records.RecordError):
            yield records.read_record(path, RankRecord).code_sha256
    for node in paths.sampled_nodes():
        with suppress(records.RecordError):
            yield records.read_record(paths.telemetry_start(node), TelemetryStart).code_sha256


def _full(paths: RunPaths) -> Path | None:
    for directory in (paths.directory, paths.logs):
        if directory.is_dir() and shutil.disk_usage(directory).free < _FULL_BELOW:
            return directory
    return None


def _read(path: Path, kind: type[_Record], unread: list[str]) -> _Record | None:
    """A record that the job wrote; None if it is missing or, as noted in ``unread``, damaged."""
    try:
        return records.read_if_there(path, kind)
    except records.RecordError as error:
        unread.append(str(error))
        return None


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
            text += tail(log) + "\n"
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
    return f"{cause}; " + (_quoted(log) if log.exists() else f"see {paths.logs}")


def failed_stage(paths: RunPaths, ended: EndedRecord) -> tuple[Outcome, str]:
    """The outcome and cause of a job that failed in one of its stages, if nothing outside ended it
    and no rank left a record.
    """
    if ended.failed_stage in _BEFORE_TRAINING:
        error = first_error(paths.logs / "telemetry.log")
        cause = f"{_BEFORE_TRAINING[ended.failed_stage]}{error.where}: {error.message}"
        return Outcome.TELEMETRY_INVALID, cause
    if ended.failed_stage == "gpu_limits":
        error = first_error(paths.logs / "gpu-limits.log")
        return Outcome.ERROR, f"limits could not be set{error.where}: {error.message}"
    if ended.training_exit_code is not None:
        return Outcome.ERROR, (
            f"training ended with {exit_code(ended.training_exit_code)} and no rank left a record "
            f"of an error; {_quoted(paths.logs / 'training.log')}"
        )
    log = paths.job_log(ended.job_id)
    quoted = _quoted(log) if log.exists() else f"see {paths.logs}"
    return Outcome.ERROR, f"the job failed in its stage {ended.failed_stage!r}; {quoted}"


def _quoted(log: Path) -> str:
    """A clause with what a log says of a failure."""
    error = first_error(log)
    return f"{log} says{error.where}: {error.message}"


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
