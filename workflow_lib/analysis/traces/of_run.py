"""Turns the traces of a profiled run into tables in its directory, and into a short text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from workflow_lib import results
from workflow_lib.analysis.tables import table, write_table
from workflow_lib.analysis.traces.analysis import TraceAnalysis, analyse
from workflow_lib.analysis.traces.files import found_traces
from workflow_lib.analysis.traces.groups import INTER_NODE, INTRA_NODE
from workflow_lib.records import (
    KERNELS,
    TRACES,
    Cell,
    Outcome,
    RecordError,
    RunPaths,
    read_outcome,
    read_record,
    write_checksums,
)


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
    traces, remarks = found_traces(paths.traces, ranks)
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
    parts += [f"rank {rank}: {note}" for rank, said in analysis.notes.items() for note in said]
    return "\n".join(parts)
