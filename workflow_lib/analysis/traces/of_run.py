"""Turns the traces of a profiled run into tables in its directory, and into a short text.

Finds the traces in a directory, and the rank that each is of.

``rank<n>.json.gz`` is this workflow's name. PyTorch's ``tensorboard_trace_handler`` writes
``<worker>.<ns>.pt.trace.json``, with ``.gz`` if asked to, where the worker is ``<host>_<pid>``
unless a name was given. Such a file says its rank itself (``distributedInfo``), or its worker's
name does, as in ``rank-3`` and ``graph_capture_rank_0``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from workflow_lib import results
from workflow_lib.analysis.traces.analysis import TraceAnalysis, analyse
from workflow_lib.analysis.traces.decoding import Notes, TraceFile
from workflow_lib.analysis.traces.groups import INTER_NODE, INTRA_NODE
from workflow_lib.analysis.traces.names import COMMUNICATION, COMPUTATION, UNKNOWN
from workflow_lib.records.cell import Cell
from workflow_lib.records.checksums import write_checksums
from workflow_lib.records.files import read_outcome, read_record
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import KERNELS, TRACES
from workflow_lib.table_files import table, write_table

_OWN = re.compile(r"rank(\d+)\.json(?:\.gz)?")
_TORCHS = re.compile(r"(?P<worker>.+?)(?:\.(?P<ns>\d+))?\.pt\.trace\.json(?:\.gz)?")
_RANK = re.compile(r"(?:^|[_.-])rank[_-]?(\d+)(?:[_.-]|$)")


def find_traces(directory: Path, ranks: int) -> tuple[dict[int, Path], tuple[str, ...]]:
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
            stated = _rank(path, torchs["worker"], ranks)
            if stated is None:
                remarks.append(f"{path.name}: the trace does not say its rank, and was left out")
                continue
            rank, place = stated, (False, int(torchs["ns"] or 0), path)
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
    stated = distributed.get("rank") if isinstance(distributed, dict) else None
    if type(stated) is int and stated >= 0:
        return stated
    if named := _RANK.search(worker):
        return int(named[1])
    return 0 if ranks == 1 else None


def analyse_run(
    directory: Path, link_peaks_bytes_per_s: Mapping[str, float] | None = None
) -> TraceAnalysis:
    """Analyse the traces in a run's ``traces``, and write ``kernels`` and ``traces.parquet``.

    ``link_peaks_bytes_per_s`` are as for :func:`analyse`, and take precedence over those of
    ``cell.json``. If the run ended without traces but with a result, as out of memory, its tables
    have no rows. Otherwise raises RecordError if the directory is not a run's or holds no traces,
    and FileNotFoundError without ``cell.json``.
    """
    paths = RunPaths(directory)
    cell = read_record(paths.cell, Cell)
    ranks = cell.degrees.world_size
    traces, remarks = find_traces(paths.traces, ranks)
    if traces:
        done = analyse(
            traces,
            cell.degrees,
            cell.ranks_per_node,
            _link_peaks(cell) | dict(link_peaks_bytes_per_s or {}),
            {"cell": cell.id, "run": results.run_number(directory)},
            expected=range(ranks),
        )
        done = replace(done, remarks=(*remarks, *done.remarks))
    else:
        done = _without_traces(paths)
    write_table(done.kernels, paths.kernels)
    write_table(done.ranks, paths.trace_times)
    write_checksums(paths.trace_checksums, (paths.kernels, paths.trace_times))
    return done


def _link_peaks(cell: Cell) -> dict[str, float]:
    """The link peaks that the platform's file gave when the run was rendered."""
    hardware = cell.hardware
    given = {
        INTRA_NODE: hardware.intra_node_bytes_per_s,
        INTER_NODE: hardware.inter_node_bytes_per_s,
    }
    return {fabric: peak for fabric, peak in given.items() if peak is not None}


def _without_traces(paths: RunPaths) -> TraceAnalysis:
    ended = read_outcome(paths)
    if ended is None or not ended.outcome.is_result or ended.outcome is Outcome.COMPLETED:
        raise RecordError(
            f"{paths.traces}: no traces (rank0.json.gz, …, or *.pt.trace.json); only a "
            "profiled run leaves them"
        )
    remark = f"the run ended as {ended.outcome}, and left no traces: {ended.cause}"
    return TraceAnalysis(table([], KERNELS), table([], TRACES), {}, (remark,))


def described(analysis: TraceAnalysis) -> str:
    """A summary as text: how each rank spent its time, which ranks were late, and what
    was wrong."""
    rank_columns = ("rank", "span_s", "computation_s", "exposed_communication_s", "idle_share")
    late = ("bubble_s", "waiting_s", "late_collectives", "late_s")
    kernels = (
        "rank",
        "class",
        "group",
        "fabric",
        "kernels",
        "covered_s",
        "exposed_s",
        "link_share",
    )
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True, tbl_width_chars=140):
        parts = [
            str(analysis.ranks.select(*rank_columns, *late)),
            str(analysis.kernels.select(kernels)),
        ]
    parts += analysis.remarks
    parts += [f"rank {rank}: {note}" for rank, notes in analysis.notes.items() for note in notes]
    return "\n".join(parts)


#: name in PROFILED → the column of TRACES that is divided, and the one that it is divided by
_SHARES = {
    "exposed_communication_share": ("exposed_communication_s", "span_s"),
    "overlapped_communication_share": ("overlapped_communication_s", "communication_s"),
    "bubble_share": ("bubble_s", "span_s"),
    "idle_share": ("idle_s", "span_s"),
}


def profiled_shares(traces: pl.DataFrame, kernels: pl.DataFrame) -> dict[str, float | None]:
    """The columns of :data:`~workflow_lib.records.measures.PROFILED` from a run's rows of TRACES
    and of KERNELS.

    A share is null if a rank lacks one of its columns, or if the divisor is 0.
    """
    shares = {
        name: _mean(
            [
                None if of is None or not all_of else of / all_of
                for of, all_of in traces.select(part, whole).iter_rows()
            ]
        )
        for name, (part, whole) in _SHARES.items()
    }
    for name, classes in (
        ("communication_kernel_share", COMMUNICATION),
        ("unknown_kernel_share", (UNKNOWN,)),
    ):
        shares[name] = _mean(_of_kernel_time(kernels, classes, traces["rank"]))
    return shares


def _of_kernel_time(
    kernels: pl.DataFrame, classes: Sequence[str], ranks: Collection[int]
) -> list[float | None]:
    """For each rank, the share of its kernels' durations that is of these classes."""

    def durations(classes: Sequence[str]) -> dict[int, float]:
        of_classes = kernels.filter(pl.col("class").is_in(classes))
        return dict(of_classes.group_by("rank").agg(pl.col("kernel_s").sum()).iter_rows())

    part, whole = durations(classes), durations((*COMMUNICATION, *COMPUTATION, UNKNOWN))
    return [part.get(rank, 0.0) / whole[rank] if whole.get(rank) else None for rank in ranks]


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known and len(known) == len(shares) else None
