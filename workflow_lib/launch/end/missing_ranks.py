"""Finds missing ranks: ranks that did not arrive in a collective before the others timed out."""

from __future__ import annotations

import re
from collections.abc import Collection

from workflow_lib import records
from workflow_lib.records import Cell, RankRecord, RunPaths, bounds

#: the line that NCCL's watchdog writes before it ends a process, which Python does not see
_WATCHDOG = "Watchdog caught collective operation timeout: "
_RANK, _OPERATION = re.compile(r"\[rank(\d+)\]"), re.compile(r"OpType=(\w+)")
#: a traceback's frame in torch's collectives, and one in this project's
_COLLECTIVE = re.compile(r'distributed_c10d\.py", line \d+, in (\w+)')
_OWN_FRAME = re.compile(
    r'File "[^"\n]*workflow_lib/(train(?:ers|ing)/\S+\.py)", line (\d+), in (\w+)'
)
#: how many ranks a sentence names at most
_NAMED = 4


def missing_ranks(paths: RunPaths, waited: Collection[int]) -> str:
    """A clause that names the ranks of the run that are not in ``waited``; empty if all are."""
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
    """Rank → the collective in which it waited, for each rank that NCCL's watchdog ended, in the
    log's order.
    """
    found: dict[int, str] = {}
    log = paths.training_log
    if log.exists():
        with records.open_file(log) as stream:
            # A line may be endless, so it is read in parts. The watchdog's line is short.
            for raw in iter(lambda: stream.readline(bounds.LOG_LINE_BYTES.most), b""):
                line = raw.decode("utf-8", "replace")
                where = line.find(_WATCHDOG)
                rank = _RANK.search(line, 0, max(where, 0))
                operation = _OPERATION.search(line, where)
                if where >= 0 and rank and operation:
                    found.setdefault(int(rank[1]), operation[1])
    return found


def collective(traceback: str) -> str:
    """The collective of torch in which a traceback ends, else the line of training; else ""."""
    traceback = traceback[-bounds.TRACEBACK_LETTERS.most :]
    if named := _COLLECTIVE.findall(traceback):
        return str(named[-1])
    if frames := _OWN_FRAME.findall(traceback):
        file, line, function = frames[-1]
        return f"{function}, {file}:{line}"
    return ""


def with_node(paths: RunPaths, rank: int) -> str:
    """A rank and its node, e.g. "3 on node7"; the rank alone if its node is not known."""
    try:
        record = records.read_if_there(paths.rank(rank), RankRecord)
    except records.RecordError:
        return f"{rank}"  # the record is damaged
    return f"{rank} on {record.node}" if record is not None else f"{rank}"
