"""Judges how a run ended, from the job's end record, the ranks' ends, the scheduler's state and the
telemetry.
"""

from __future__ import annotations

import hashlib
import os

from workflow_lib import records, results
from workflow_lib.launch.end import job_causes, rank_ends
from workflow_lib.launch.end.job_causes import Evidence, gather
from workflow_lib.launch.end.log_errors import first_error
from workflow_lib.launch.end.rank_ends import Kind, RankEnd
from workflow_lib.launch.script import checksum
from workflow_lib.records import (
    Cell,
    EndedRecord,
    JobState,
    Outcome,
    OutcomeRecord,
    RankRecord,
    RunPaths,
    StopRecord,
)
from workflow_lib.safety import hiding
from workflow_lib.telemetry.validity import coverage


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
        nodes=ended.nodes if ended else _known_nodes(paths),
        started_unix_s=ended.started_unix_s if ended else None,
        ended_unix_s=ended.ended_unix_s if ended else None,
        scheduler_state=state.state if state is not None else None,
        script_edited=edited,
        failed_nodes=() if outcome is Outcome.COMPLETED else _failed_nodes(evidence, outcome),
        code_sha256=next(iter(evidence.code)) if len(evidence.code) == 1 else None,
    )


def _named(code: frozenset[str | None]) -> str:
    """Versions of the code by the beginnings of their checksums."""
    return ", ".join(sorted("one not recorded" if each is None else each[:12] for each in code))


def _was_edited(paths: RunPaths, ended: EndedRecord | None) -> bool:
    """Whether the run's ``job.sh`` was changed after rendering, or is not the script that ran.

    A run that another script started has none.
    """
    if not paths.script.exists():
        return ended is not None and bool(ended.script_sha256)
    if not checksum.is_intact(paths.script):
        return True
    ran = ended.script_sha256 if ended is not None else ""
    return bool(ran) and ran != hashlib.sha256(paths.script.read_bytes()).hexdigest()


def _outcome_and_cause(evidence: Evidence) -> tuple[Outcome, str]:
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
    outside = job_causes.ended_from_outside(evidence)
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
        return Outcome.ERROR, job_causes.without_end_record(evidence)
    return job_causes.failed_stage(evidence.paths, evidence.ended)


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
    code = job_causes.exit_code(ended.telemetry_exit_code)
    error = first_error(evidence.paths.logs / "telemetry.log")
    return f" The sampler{error.where} ended with {code}: {error.message}"


def _trained(evidence: Evidence) -> tuple[Outcome, str]:
    """The outcome and cause of a run that trained to its end: whether telemetry covers it and
    limits held, and for a profiled run whether it left its traces.
    """
    paths = evidence.paths
    cell = records.read_record(paths.cell, Cell)
    if cell.training.sets_limits and (amiss := evidence.limits_not_kept):
        return Outcome.ERROR, f"trained to the end, but {amiss}"
    if results.is_profiled(paths.directory):
        return _traced(paths)
    reason = coverage.invalid_reason(paths, cell)
    if reason is None:
        return Outcome.COMPLETED, "trained to the end, with telemetry throughout"
    return Outcome.TELEMETRY_INVALID, reason + _end_of_samplers(evidence)


def _traced(paths: RunPaths) -> tuple[Outcome, str]:
    """The outcome and cause of a profiled run that trained to its end. It needs no telemetry, as
    it is not measured.
    """
    ranks = range(records.read_record(paths.cell, Cell).degrees.world_size)
    absent = [rank for rank in ranks if not paths.trace(rank).is_file()]
    if not absent:
        return Outcome.COMPLETED, "trained to the end, and every rank left its trace"
    return Outcome.ERROR, f"rank {absent[0]} left no trace ({paths.trace(absent[0])} is missing)"


def _waiting(evidence: Evidence) -> str:
    """A clause: which rank waited in vain, in which collective, for which ranks; empty if none."""
    paths, ranks = evidence.paths, evidence.ranks
    stopped = rank_ends.stopped_by_watchdog(paths)
    waited = ranks.ranks(Kind.WAITED) | stopped.keys()
    if not waited:
        return ""
    if stopped:
        rank, collective = next(iter(stopped.items()))
        clause = f"rank {rank_ends.with_node(paths, rank)} waited in vain in {collective}"
        clause += " (NCCL's watchdog)"
    else:
        clause = next(end.description for end in ranks.ends if end.kind is Kind.WAITED)
    missing = rank_ends.missing_ranks(paths, waited | ranks.unknown)
    return f"{missing}; {clause}" if missing else clause


def _failed_nodes(evidence: Evidence, outcome: Outcome) -> tuple[str, ...]:
    """Nodes whose GPUs had a fault, and nodes that failed according to Slurm or a rank."""
    failed = {fault.node for fault in evidence.faults}
    if outcome is Outcome.NODE_FAILURE:
        if evidence.state is not None and evidence.state.failed_node:
            failed.add(evidence.state.failed_node)
        failed |= set(job_causes.lost_nodes(evidence) or ())
        failed |= {end.node for end in evidence.ranks.ends if end.outcome is Outcome.NODE_FAILURE}
    return tuple(sorted(failed))


def _known_nodes(paths: RunPaths) -> tuple[str, ...]:
    """The nodes of a job without an end record, as far as its ranks and samplers name them."""
    nodes = set(paths.sampled_nodes())
    for path in paths.steps.glob("rank*.json"):
        try:
            nodes.add(records.read_record(path, RankRecord).node)
        except records.RecordError:
            continue  # damaged when the job ended; the other records name nodes, too
    return tuple(sorted(nodes))
