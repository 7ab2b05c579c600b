"""Judges how a run ended, from the job's end record, the ranks' ends, the scheduler's state and the
telemetry.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from workflow_lib import results
from workflow_lib.launch import job_script
from workflow_lib.launch.evidence import Evidence, Kind, RankEnd, gather
from workflow_lib.launch.log_errors import first_error
from workflow_lib.launch.processes import signal_name
from workflow_lib.launch.schedulers.queries import is_held_unlaunched, word
from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_if_there, read_record
from workflow_lib.records.outcomes import EndedRecord, JobState, Outcome, OutcomeRecord, StopRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.training import NATIVE
from workflow_lib.records.whole_files import user_name
from workflow_lib.safety import hiding
from workflow_lib.telemetry.validity import coverage

#: how many ranks a sentence names at most
_NAMED = 4
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


def classify(paths: RunPaths, state: JobState | None) -> OutcomeRecord:
    """How the run ended. ``state`` is the job's state from the scheduler; None if it has none.

    A record that cannot be read is named in the cause, and the others are used.

    Raises records.RecordError if the run's ``cell.json`` or ``job.json`` cannot be read.
    """
    evidence = gather(paths, state)
    ended = evidence.ended
    outcome, cause = _outcome_and_cause(evidence)
    if outcome not in (Outcome.COMPLETED, Outcome.NODE_FAILURE) and evidence.faults:
        cause += f"; its telemetry saw a fault ({evidence.faults[0]})"
    if outcome is not Outcome.COMPLETED and evidence.suspended is not None:
        seconds = evidence.suspended.seconds
        cause = f"{cause.rstrip('.')}; the job was suspended for {seconds:.0f} s while it trained"
    if evidence.limits_left:
        cause = f"{cause.rstrip('.')}; {evidence.limits_left}"
    # What would say why may not have been written.
    if outcome is not Outcome.COMPLETED and evidence.full:
        cause += f"; the file system of {evidence.full} is full: make room there"
    if outcome is not Outcome.COMPLETED and evidence.damaged:
        cause += f"; not readable: {'; '.join(evidence.damaged)}"
    edited = _was_edited(paths, ended)
    if edited:
        cause += "; its job.sh was edited by hand after it was rendered"
    if len(evidence.code) > 1:
        cause += f"; its parts ran different versions of the code: {_named(evidence.code)}"
    return OutcomeRecord(
        outcome=outcome,
        # It may hold the output of any program.
        cause=hiding(os.environ)(cause),
        job_id=evidence.job_id,
        nodes=ended.nodes if ended else _known_nodes(evidence),
        started_unix_s=ended.started_unix_s if ended else None,
        ended_unix_s=ended.ended_unix_s if ended else None,
        scheduler_state=state.state if state is not None else None,
        script_edited=edited,
        failed_nodes=() if outcome is Outcome.COMPLETED else _failed_nodes(evidence, outcome),
        code_sha256=next(iter(evidence.code)) if len(evidence.code) == 1 else None,
    )


def _named(code: frozenset[str | None]) -> str:
    """Versions of the code by the beginnings of their checksums."""
    return ", ".join(
        sorted("one not recorded" if checksum is None else checksum[:12] for checksum in code)
    )


def _was_edited(paths: RunPaths, ended: EndedRecord | None) -> bool:
    """Whether the run's ``job.sh`` was changed after rendering, or is not the script that ran.

    A run that another script started has none.
    """
    if not paths.script.exists():
        return ended is not None and bool(ended.script_sha256)
    if not job_script.is_intact(paths.script):
        return True
    ran = ended.script_sha256 if ended is not None else ""
    return bool(ran) and ran != hashlib.sha256(paths.script.read_bytes()).hexdigest()


def _outcome_and_cause(evidence: Evidence) -> tuple[Outcome, str]:
    trained = evidence.ended is not None and evidence.ended.training_exit_code == 0
    if trained and (amiss := _told_amiss(evidence.paths)):
        return Outcome.ERROR, amiss
    if evidence.trained:
        return _trained(evidence)
    # The error of the rank that failed first explains more than the scheduler's state. The
    # scheduler's state explains more than a rank that was killed or that waited for others.
    ranks, first = evidence.ranks, evidence.ranks.first
    stopped = evidence.stopped
    if first is not None and first.kind is Kind.FAILED and not _is_after(first, stopped):
        fault = evidence.fault_of(first.node)
        if fault is not None and first.outcome in (Outcome.ERROR, Outcome.NODE_FAILURE):
            return Outcome.NODE_FAILURE, f"{fault}; {first.description}"
        return first.outcome, first.description
    outside = _ended_from_outside(evidence)
    if outside is not None:
        outcome, cause = outside
        if outcome is Outcome.OUT_OF_MEMORY and first is not None and first.kind is Kind.KILLED:
            cause += f"; {ranks.description}"
        return outcome, cause
    if stopped is not None:
        return _stopped(evidence, stopped)
    if evidence.faults:
        also = f"; {_waiting(evidence) or ranks.description}"
        return Outcome.NODE_FAILURE, str(evidence.faults[0]) + also.removesuffix("; ")
    if first is not None and first.kind in (Kind.KILLED, Kind.AFTERMATH):
        return first.outcome, ranks.description
    if waited := _waiting(evidence):
        return Outcome.COMMUNICATION_TIMEOUT, waited
    if evidence.ended is None:
        return Outcome.ERROR, _without_end_record(evidence)
    return _failed_stage(evidence.paths, evidence.ended)


def _told_amiss(paths: RunPaths) -> str:
    """What another program that ended without an error did not tell of its steps; "" if nothing."""
    cell = read_record(paths.cell, Cell)
    training = cell.training
    if training.trainer == NATIVE or results.is_profiled(paths.directory):
        return ""
    ended = f"trainer {training.trainer} ended with exit code 0, but"
    steps = training.warmup_steps + training.measured_steps
    tokens: Counter[str] = Counter()
    for rank in range(cell.degrees.world_size):
        if unlike := _unlike_degrees(paths, rank, cell):
            return f"{ended} it trained with {unlike}"
        path = paths.rank_steps(rank)
        rows = list(csv.DictReader(path.open(encoding="ascii"))) if path.exists() else []
        if len(rows) < steps and training.trainer_steps == "hook":
            seen = len(rows) + 1 if rows else "at most 1"
            return (
                f"{ended} torch's hook saw {seen} of {steps + 1} optimizer steps of rank {rank}; "
                "{steps} in its command tells how many are needed"
            )
        if len(rows) < steps:
            return (
                f"{ended} calls in its code tell {len(rows)} of {steps} steps of rank {rank}; "
                "{steps} in its command tells how many are needed, and each needs "
                "triptych_steps.step(tokens=…) around it"
            )
        for row in rows:
            if not row["tokens"]:
                return f"{ended} rank {rank} told no tokens: triptych_steps.step(tokens=…) does"
            tokens[row["step"]] += int(float(row["tokens"]))
    batch = training.global_batch_size * cell.model.sequence_length
    for step, total in tokens.items():
        if total != batch:
            return (
                f"{ended} its ranks together tell {total} tokens in step {step}, and the batch has "
                f"{batch}; each rank tells its own"
            )
    return ""


def _unlike_degrees(paths: RunPaths, rank: int, cell: Cell) -> str:
    """A degree that a rank tells and that is not the cell's; "" if there is none."""
    record = read_if_there(paths.rank(rank), RankRecord)
    for name, degree in ((record and record.degrees) or {}).items():
        if degree != (asked := getattr(cell.degrees, name, degree)):
            return f"{name} {degree}, and the cell asks for {asked}"
    return ""


def _is_after(end: RankEnd, stopped: StopRecord | None) -> bool:
    """Whether a rank ended after the job was stopped early."""
    return stopped is not None and end.unix_time_s > stopped.unix_time_s


def _stopped(evidence: Evidence, stopped: StopRecord) -> tuple[Outcome, str]:
    """The outcome and cause of a run that its job stopped early."""
    if evidence.faults and stopped.outcome is not Outcome.NODE_FAILURE:
        return Outcome.NODE_FAILURE, f"{evidence.faults[0]}; {stopped.cause}"
    if stopped.outcome is Outcome.TELEMETRY_INVALID:
        return stopped.outcome, f"{stopped.cause}.{_end_of_samplers(evidence)}"
    return stopped.outcome, stopped.cause


def _end_of_samplers(evidence: Evidence) -> str:
    """A sentence on how the samplers' launcher ended; empty if it ended without an error."""
    ended = evidence.ended
    if ended is None or not ended.telemetry_exit_code:
        return ""
    code = _exit_code(ended.telemetry_exit_code)
    error = first_error(evidence.paths.logs / "telemetry.log")
    return f" The sampler{error.where} ended with {code}: {error.message}"


def _trained(evidence: Evidence) -> tuple[Outcome, str]:
    """The outcome and cause of a run that trained to its end: whether telemetry covers it and
    limits held, and for a profiled run whether it left its traces.
    """
    paths = evidence.paths
    cell = read_record(paths.cell, Cell)
    if cell.training.sets_limits and (amiss := evidence.limits_not_kept):
        return Outcome.ERROR, f"trained to the end, but {amiss}"
    if results.is_profiled(paths.directory):
        return _traced(paths)
    reason = coverage.invalid_reason(paths, cell)
    if reason is None:
        cause = "trained to the end, with telemetry throughout"
        if cell.training.trainer != NATIVE and cell.training.trainer_steps == "hook":
            cause += "; its tokens are those that the cell asks for, which nothing checked"
        return Outcome.COMPLETED, cause
    return Outcome.TELEMETRY_INVALID, reason + _end_of_samplers(evidence)


def _traced(paths: RunPaths) -> tuple[Outcome, str]:
    """The outcome and cause of a profiled run that trained to its end. It needs no telemetry, as
    it is not measured.
    """
    ranks = range(read_record(paths.cell, Cell).degrees.world_size)
    absent = [rank for rank in ranks if not paths.trace(rank).is_file()]
    if not absent:
        return Outcome.COMPLETED, "trained to the end, and every rank left its trace"
    return Outcome.ERROR, f"rank {absent[0]} left no trace ({paths.trace(absent[0])} is missing)"


def _waiting(evidence: Evidence) -> str:
    """A clause: which rank waited in vain, in which collective, for which ranks; empty if none."""
    ranks = evidence.ranks
    waited = ranks.ranks(Kind.WAITED) | ranks.watchdog.keys()
    if not waited:
        return ""
    if ranks.watchdog:
        rank, collective = next(iter(ranks.watchdog.items()))
        clause = f"rank {evidence.with_node(rank)} waited in vain in {collective}"
        clause += " (NCCL's watchdog)"
    else:
        clause = next(end.description for end in ranks.ends if end.kind is Kind.WAITED)
    missing = _missing_ranks(evidence, waited | ranks.unknown)
    return f"{missing}; {clause}" if missing else clause


def _failed_nodes(evidence: Evidence, outcome: Outcome) -> tuple[str, ...]:
    """Nodes whose GPUs had a fault, and nodes that failed according to Slurm or a rank."""
    failed = {fault.node for fault in evidence.faults}
    if outcome is Outcome.NODE_FAILURE:
        if evidence.state is not None and evidence.state.failed_node:
            failed.add(evidence.state.failed_node)
        failed |= set(evidence.lost_nodes or ())
        failed |= {end.node for end in evidence.ranks.ends if end.outcome is Outcome.NODE_FAILURE}
    return tuple(sorted(failed))


def _known_nodes(evidence: Evidence) -> tuple[str, ...]:
    """The nodes of a job without an end record, as far as its ranks and samplers name them."""
    ranks = {record.node for record in evidence.rank_records.values()}
    return tuple(sorted(ranks | {*evidence.paths.sampled_nodes()}))


def _missing_ranks(evidence: Evidence, waited: Collection[int]) -> str:
    """A clause that names the ranks of the run that are not in ``waited``; empty if all are."""
    world_size = read_record(evidence.paths.cell, Cell).degrees.world_size
    missing = [rank for rank in range(world_size) if rank not in waited]
    if not missing:
        return ""
    names = [evidence.with_node(rank) for rank in missing[:_NAMED]]
    if len(missing) > _NAMED:
        names.append(f"{len(missing) - _NAMED} more")
    ranks = "rank" if len(missing) == 1 else "ranks"
    return f"{ranks} {', '.join(names)} did not arrive"


def _ended_from_outside(evidence: Evidence) -> tuple[Outcome, str] | None:
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
    if (lost := evidence.lost_nodes) is not None:
        named = f"{', '.join(lost)} (srun says so)" if lost else "which one is not known"
        return Outcome.NODE_FAILURE, f"a node failed under the job: {named}"
    if ended is not None and ended.failed_stage == "interrupted":
        return Outcome.CANCELLED, "the job was asked to end by a signal"
    return None


def _without_end_record(evidence: Evidence) -> str:
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


def _failed_stage(paths: RunPaths, ended: EndedRecord) -> tuple[Outcome, str]:
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
            f"training ended with {_exit_code(ended.training_exit_code)} and no rank left a record "
            f"of an error; {_quoted(paths.logs / 'training.log')}"
        )
    log = paths.job_log(ended.job_id)
    quoted = _quoted(log) if log.exists() else f"see {paths.logs}"
    return Outcome.ERROR, f"the job failed in its stage {ended.failed_stage!r}; {quoted}"


def _quoted(log: Path) -> str:
    """A clause with what a log says of a failure."""
    error = first_error(log)
    return f"{log} says{error.where}: {error.message}"


def _exit_code(code: int) -> str:
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
