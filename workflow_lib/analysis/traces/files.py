"""Finds the traces in a directory, and the rank that each is of.

``rank<n>.json.gz`` is this workflow's name. PyTorch's ``tensorboard_trace_handler`` writes
``<worker>.<ns>.pt.trace.json``, with ``.gz`` if asked to, where the worker is ``<host>_<pid>``
unless a name was given. Such a file says its rank itself (``distributedInfo``), or its worker's
name does, as in ``rank-3`` and ``graph_capture_rank_0``.
"""

from __future__ import annotations

import re
from pathlib import Path

from workflow_lib.analysis.traces.decoding import TraceFile
from workflow_lib.analysis.traces.notes import Notes

_OWN = re.compile(r"rank(\d+)\.json(?:\.gz)?")
_TORCHS = re.compile(r"(?P<worker>.+?)(?:\.(?P<ns>\d+))?\.pt\.trace\.json(?:\.gz)?")
_RANK = re.compile(r"(?:^|[_.-])rank[_-]?(\d+)(?:[_.-]|$)")


def found_traces(directory: Path, ranks: int) -> tuple[dict[int, Path], tuple[str, ...]]:
    """The trace of each rank below ``ranks``, and remarks on files that were left out.

    Of several traces of a rank the latest is taken, and this workflow's own name before others.
    """
    remarks = []
    #: rank → (whether the name is our own, ns, path)
    best: dict[int, tuple[bool, int, Path]] = {}
    for path in sorted(directory.glob("*.json*")):
        own, torchs = _OWN.fullmatch(path.name), _TORCHS.fullmatch(path.name)
        if own:
            rank, place = int(own[1]), (True, 0, path)
        elif torchs:
            said = _rank(path, torchs["worker"], ranks)
            if said is None:
                remarks.append(f"{path.name}: the trace does not say its rank, and was left out")
                continue
            rank, place = said, (False, int(torchs["ns"] or 0), path)
        else:
            continue
        if rank >= ranks:
            remarks.append(f"{path.name}: the run has no rank {rank}; the trace was left out")
            continue
        if other := best.get(rank):
            place, worse = max(place, other), min(place, other)
            remarks.append(f"{worse[2].name}: rank {rank} has a later trace; it was left out")
        best[rank] = place
    return {rank: place[2] for rank, place in sorted(best.items())}, tuple(remarks)


def _rank(path: Path, worker: str, ranks: int) -> int | None:
    file = TraceFile(path, Notes())
    # The header stands before the events, and is complete with the first of these.
    next(iter(file), None)
    distributed = file.header.get("distributedInfo")
    said = distributed.get("rank") if isinstance(distributed, dict) else None
    if type(said) is int and said >= 0:
        return said
    if named := _RANK.search(worker):
        return int(named[1])
    return 0 if ranks == 1 else None
