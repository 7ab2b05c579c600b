"""Missing ranks: those that did not arrive in a collective, in which the others were stuck."""

from __future__ import annotations

import re
from collections.abc import Collection

from workflow_lib import records
from workflow_lib.records import Cell, RankRecord, RunPaths, bounds

#: the line with which NCCL's watchdog ends a process, before Python learns of it
_WATCHDOG = "Watchdog caught collective operation timeout: "
_RANK, _OPERATION = re.compile(r"\[rank(\d+)\]"), re.compile(r"OpType=(\w+)")
#: a traceback's frame in torch's collectives, and one in this project's
_COLLECTIVE = re.compile(r'distributed_c10d\.py", line \d+, in (\w+)')
_OWN_FRAME = re.compile(r'File "[^"\n]*workflow_lib/(training/\S+\.py)", line (\d+), in (\w+)')
#: ranks that a sentence names
_NAMED = 4


def missing_ranks(paths: RunPaths, waited: Collection[int]) -> str:
    """Name the ranks of the run that are not among those that ``waited``; empty where all did."""
    world_size = records.read_record(paths.cell, Cell).degrees.world_size
    missing = [rank for rank in range(world_size) if rank not in waited]
    if not missing:
        return ""
    names = [with_node(paths, rank) for rank in missing[:_NAMED]]
    if len(missing) > _NAMED:
        names.append(f"{len(missing) - _NAMED} more")
    ranks = "rank" if len(missing) == 1 else "ranks"
    return f"{ranks} {', '.join(names)} did not arrive"


def stopped_by_watchdog(paths: RunPaths) -> dict[int, str]:
    """Of each rank that NCCL's watchdog ended, the collective that it had waited in; the first to
    be ended comes first.
    """
    found: dict[int, str] = {}
    log = paths.logs / "training.log"
    if log.exists():
        with records.open_file(log) as stream:
            # Of a line that never ends a part at a time: one that tells of it is short.
            for raw in iter(lambda: stream.readline(bounds.LOG_LINE_BYTES.most), b""):
                line = raw.decode("utf-8", "replace")
                where = line.find(_WATCHDOG)
                rank = _RANK.search(line, 0, max(where, 0))
                operation = _OPERATION.search(line, where)
                if where >= 0 and rank and operation:
                    found.setdefault(int(rank[1]), operation[1])
    return found


def collective(traceback: str) -> str:
    """In which collective of torch a traceback ends, or else in which line of training."""
    traceback = traceback[-bounds.TRACEBACK_LETTERS.most :]
    if named := _COLLECTIVE.findall(traceback):
        return str(named[-1])
    if frames := _OWN_FRAME.findall(traceback):
        file, line, function = frames[-1]
        return f"{function}, {file}:{line}"
    return ""


def with_node(paths: RunPaths, rank: int) -> str:
    """A rank and where it ran, as far as it is known."""
    try:
        record = records.read_if_there(paths.rank(rank), RankRecord)
    except records.RecordError:
        return f"{rank}"  # torn, and of no use here
    return f"{rank} on {record.node}" if record is not None else f"{rank}"
