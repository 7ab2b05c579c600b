"""Whom the others waited for: the ranks that a communication timeout says nothing of."""

from __future__ import annotations

import re
from collections.abc import Collection

from workflow_lib import records
from workflow_lib.records import Cell, RankRecord, RunPaths

#: the line with which NCCL's watchdog ends a process, before Python learns of it
_WATCHDOG = re.compile(
    r"\[rank(\d+)\].*Watchdog caught collective operation timeout: .*OpType=(\w+)"
)
#: ranks that a sentence names
_NAMED = 4


def absent_ranks(paths: RunPaths, waited: Collection[int]) -> str:
    """Name the ranks of the run that are not among those that ``waited``; empty where all did."""
    world_size = records.read_record(paths.cell, Cell).degrees.world_size
    absent = [rank for rank in range(world_size) if rank not in waited]
    if not absent:
        return ""
    names = [_with_node(paths, rank) for rank in absent[:_NAMED]]
    if len(absent) > _NAMED:
        names.append(f"{len(absent) - _NAMED} more")
    ranks = "rank" if len(absent) == 1 else "ranks"
    return f"{ranks} {', '.join(names)} did not arrive"


def stopped_by_watchdog(paths: RunPaths) -> str:
    """What NCCL's watchdog said where it ended the ranks: who waited in which collective, and who
    did not arrive. Empty where it said nothing.
    """
    log = paths.logs / "training.log"
    if not log.exists():
        return ""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = [(int(rank), collective) for rank, collective in _WATCHDOG.findall(text)]
    if not found:
        return ""
    rank, collective = found[0]
    said = f"rank {_with_node(paths, rank)} waited in vain in {collective} (NCCL's watchdog)"
    absent = absent_ranks(paths, {rank for rank, _ in found})
    return f"{said}; {absent}" if absent else said


def _with_node(paths: RunPaths, rank: int) -> str:
    record = records.read_if_there(paths.rank(rank), RankRecord)
    return f"{rank} on {record.node}" if record is not None else f"{rank}"
