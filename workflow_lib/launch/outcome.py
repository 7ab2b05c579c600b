"""Says how a run ended, from what it left: the job's last word, the ranks' errors, the scheduler's
state and the telemetry.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from workflow_lib import records
from workflow_lib.launch import seal, waiting
from workflow_lib.records import (
    Cell,
    EndedRecord,
    ErrorRecord,
    JobRecord,
    Outcome,
    OutcomeRecord,
    RunPaths,
)
from workflow_lib.telemetry.validity import coverage

#: how Slurm calls an end that the job itself may not have lived to report
_SCHEDULER_ENDS = {
    "TIMEOUT": (Outcome.TIMEOUT, "the job reached its time limit"),
    "DEADLINE": (Outcome.TIMEOUT, "the job reached its deadline"),
    "NODE_FAIL": (Outcome.NODE_FAILURE, "a node of the job failed"),
    "BOOT_FAIL": (Outcome.NODE_FAILURE, "a node of the job failed to boot"),
    "PREEMPTED": (Outcome.PREEMPTED, "the job was preempted"),
    "CANCELLED": (Outcome.CANCELLED, "the job was cancelled"),
    "OUT_OF_MEMORY": (Outcome.OUT_OF_MEMORY, "a process of the job ran out of host memory"),
}
#: stages of the job that only telemetry can fail, and what to say then
_BEFORE_TRAINING = {
    "telemetry": "telemetry did not start",
    "cool_down": "telemetry ended, or told no temperature, before training began",
    "baseline": "telemetry ended before training began",
}


def classify(paths: RunPaths, scheduler_state: str | None) -> OutcomeRecord:
    """How the run ended. ``scheduler_state`` is the scheduler's word, or None where it has none.

    Raises records.RecordError where a file that the job left cannot be read.
    """
    ended = records.read_if_there(paths.ended, EndedRecord)
    job = records.read_if_there(paths.job, JobRecord)
    outcome, cause = _how(paths, ended, scheduler_state)
    edited = _was_edited(paths, ended)
    if edited:
        cause += "; its job.sh was edited by hand after it was rendered"
    return OutcomeRecord(
        outcome=outcome,
        cause=cause,
        job_id=ended.job_id if ended else (job.job_id if job else None),
        nodes=ended.nodes if ended else (),
        started_unix_s=ended.started_unix_s if ended else None,
        ended_unix_s=ended.ended_unix_s if ended else None,
        scheduler_state=scheduler_state,
        script_edited=edited,
    )


def _was_edited(paths: RunPaths, ended: EndedRecord | None) -> bool:
    """Whether the script that lies there, or the one that ran, is not what was rendered."""
    if not seal.is_intact(paths.script):
        return True
    ran = ended.script_sha256 if ended is not None else ""
    return bool(ran) and ran != hashlib.sha256(paths.script.read_bytes()).hexdigest()


def _how(
    paths: RunPaths, ended: EndedRecord | None, scheduler_state: str | None
) -> tuple[Outcome, str]:
    if ended is not None and ended.failed_stage is None and ended.training_exit_code == 0:
        reason = coverage.invalid_reason(paths, records.read_record(paths.cell, Cell))
        if reason is not None:
            if ended.telemetry_exit_code:
                code = _exit_code(ended.telemetry_exit_code)
                reason += (
                    f" The sampler ended with {code}: {_last_line(paths.logs / 'telemetry.log')}"
                )
            return Outcome.TELEMETRY_INVALID, reason
        return Outcome.COMPLETED, "trained to the end, with telemetry throughout"
    # What the rank that failed first said comes before what the scheduler made of it.
    # But a rank that only waited for others in vain says less than who took these away.
    first = _first_error(paths)
    if first is not None and first.outcome != Outcome.COMMUNICATION_TIMEOUT:
        return _rank_error(first)
    state = (scheduler_state or "").partition(" ")[0].rstrip("+")
    if ended is not None and ended.failed_stage == "time_limit":
        return Outcome.TIMEOUT, "the job came within a minute of its time limit and was ended"
    if state in _SCHEDULER_ENDS:
        outcome, cause = _SCHEDULER_ENDS[state]
        return outcome, f"{cause} ({scheduler_state})"
    if first is not None and (ended is None or ended.failed_stage != "interrupted"):
        outcome, cause = _rank_error(first)
        waited = {error.rank for error in _errors(paths)}
        absent = waiting.absent_ranks(paths, waited)
        return outcome, f"{absent}; {cause}" if absent else cause
    if ended is None:
        return Outcome.ERROR, (
            f"the job ended without its last word, ended.json (scheduler: {scheduler_state}); "
            f"see {paths.logs}"
        )
    return _failed_stage(paths, ended)


def _rank_error(error: ErrorRecord) -> tuple[Outcome, str]:
    return error.outcome, f"rank {error.rank} on {error.node}, in {error.phase}: {error.message}"


def _failed_stage(paths: RunPaths, ended: EndedRecord) -> tuple[Outcome, str]:
    if ended.failed_stage == "interrupted":
        return Outcome.CANCELLED, "the job was asked to end by a signal"
    if ended.failed_stage in _BEFORE_TRAINING:
        said = _last_line(paths.logs / "telemetry.log")
        return Outcome.TELEMETRY_INVALID, f"{_BEFORE_TRAINING[ended.failed_stage]}: {said}"
    if ended.training_exit_code is not None:
        if waited := waiting.stopped_by_watchdog(paths):
            return Outcome.COMMUNICATION_TIMEOUT, waited
        log = paths.logs / "training.log"
        return Outcome.ERROR, (
            f"training ended with {_exit_code(ended.training_exit_code)} and left no error record; "
            f"the last line of {log}: {_last_line(log)}"
        )
    return Outcome.ERROR, f"the job failed in its stage {ended.failed_stage!r}; see {paths.logs}"


def _errors(paths: RunPaths) -> list[ErrorRecord]:
    return [records.read_record(path, ErrorRecord) for path in paths.errors.glob("rank*.json")]


def _first_error(paths: RunPaths) -> ErrorRecord | None:
    """The earliest error of any rank, a rank that only waited for another one coming last."""
    return min(
        _errors(paths),
        key=lambda e: (e.outcome == Outcome.COMMUNICATION_TIMEOUT, e.unix_time_s),
        default=None,
    )


def _exit_code(code: int) -> str:
    """An exit code as bash gives it: above 128 it was a signal."""
    return f"exit code {code}" if code <= 128 else f"signal {code - 128}"


def _last_line(log: Path) -> str:
    """The last line that says something (a launcher's ruled line does not), or that none does."""
    if not log.exists():
        return f"{log} is missing"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = (line.strip() for line in reversed(lines) if any(map(str.isalnum, line)))
    return next(telling, f"{log} is empty")
