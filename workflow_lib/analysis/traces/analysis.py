"""Turns the traces of a run's ranks into tables: kernels by class, and how each rank spent its
time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from workflow_lib.analysis.known import Known
from workflow_lib.analysis.traces import collectives
from workflow_lib.analysis.traces.breakdown import class_rows, rank_times, step_work, with_groups
from workflow_lib.analysis.traces.decoding import Notes
from workflow_lib.analysis.traces.names import CLASSES, COMMUNICATION
from workflow_lib.analysis.traces.reading import read_trace
from workflow_lib.records.degrees import Degrees, group_members
from workflow_lib.records.reasons import Reason, missing
from workflow_lib.records.tables import KERNELS, TRACES
from workflow_lib.table_files import table

_ALIGNED = ("waiting_s", "transfer_s")


@dataclass(frozen=True)
class TraceAnalysis:
    """The tables of a run's traces; ``cell`` and ``run`` are null in both unless given."""

    #: rows of KERNELS
    kernels: pl.DataFrame
    #: rows of TRACES
    ranks: pl.DataFrame
    #: what was wrong with each rank's trace
    notes: Mapping[int, tuple[str, ...]]
    #: notes on the traces taken together
    remarks: tuple[str, ...]


def analyse(
    paths: Mapping[int, Path],
    degrees: Degrees | None = None,
    ranks_per_node: int | None = None,
    link_peaks_bytes_per_s: Mapping[str, float] | None = None,
    identity: Mapping[str, Any] | None = None,
    expected: Iterable[int] = (),
) -> TraceAnalysis:
    """Analyse the traces of some or all ranks of a run, one after the other.

    ``paths`` maps ranks to traces. ``degrees`` are needed to name the groups. ``ranks_per_node``
    tells which ranks share a clock and a fabric; without it all ranks are taken to share one clock.
    ``link_peaks_bytes_per_s`` are the peaks of ``intra_node`` and ``inter_node`` in one direction.
    ``identity`` holds columns that are added to every row. A rank of ``expected`` that has no trace
    is named in ``remarks``. Raises OSError if a trace cannot be opened; damage within one is in
    ``notes``.
    """
    remarks = Notes()
    for rank in expected:
        if rank not in paths:
            remarks.add(f"rank {rank} left no trace: it is missing from every table")
    rows: list[dict[str, Any]] = []
    ranks: dict[int, dict[str, Any]] = {}
    exchanged: list[pl.DataFrame] = []
    work: dict[int, pl.DataFrame] = {}
    for rank, path in sorted(paths.items()):
        trace = read_trace(path)
        kernels = with_groups(trace, rank, degrees, ranks_per_node)
        of_rank = [{"rank": rank, **row} for row in class_rows(kernels)]
        ranks[rank] = {
            "rank": rank,
            "steps": kernels["step"].n_unique() - int(kernels["step"].has_nulls()),
            "on_gpu": trace.on_gpu,
            "gpus": kernels["device"].n_unique() if trace.on_gpu else 0,
            **rank_times(kernels),
            "trace_bytes": trace.bytes_read,
            "notes": trace.notes,
        }
        exchanged.append(_exchanged(kernels, rank, ranks_per_node, of_rank, len(rows)))
        rows += of_rank
        work[rank] = step_work(kernels)
    nodes = sorted({rank // ranks_per_node for rank in paths}) if ranks_per_node else []
    shifts = _add_waiting(rows, ranks, exchanged, nodes, remarks)
    for rank, row in ranks.items():
        bubble: Known = _bubble(rank, work, degrees, ranks_per_node, shifts)
        if row["gpus"] > 1:
            bubble = None, Reason("trace_of_several_gpus")
        row["bubble_s"], row["bubble_reason"] = bubble
    order = {kind: i for i, kind in enumerate(CLASSES)}
    rows.sort(key=lambda row: (row["rank"], order[row["class"]]))
    fixed = dict(identity or {})
    peaks = link_peaks_bytes_per_s or {}
    return TraceAnalysis(
        table([fixed | _kernel_row(row, ranks[row["rank"]], peaks) for row in rows], KERNELS),
        table([fixed | _rank_row(row) for row in ranks.values()], TRACES),
        {rank: row["notes"] for rank, row in ranks.items()},
        remarks.sentences(),
    )


def _exchanged(
    kernels: pl.DataFrame,
    rank: int,
    ranks_per_node: int | None,
    rows: list[dict[str, Any]],
    first: int,
) -> pl.DataFrame:
    """A rank's communication kernels, each with the index of the row that it belongs to."""
    keys = ("class", "group", "fabric")
    index = pl.DataFrame(
        [(*(row[key] for key in keys), first + i) for i, row in enumerate(rows)],
        {**dict.fromkeys(keys, pl.String), "row": pl.Int64},
        orient="row",
    )
    node = None if ranks_per_node is None else rank // ranks_per_node
    return (
        kernels.filter(pl.col("class").is_in(COMMUNICATION))
        .join(index, on=keys, nulls_equal=True)
        .with_columns(pl.lit(rank, pl.Int64).alias("rank"), pl.lit(node, pl.Int64).alias("node"))
        .select(*collectives.SCHEMA)
    )


def _add_waiting(
    rows: list[dict[str, Any]],
    ranks: dict[int, dict[str, Any]],
    exchanged: list[pl.DataFrame],
    nodes: list[int],
    remarks: Notes,
) -> dict[int, collectives.Shift]:
    """Match collectives, add times of waiting and transfer to rows and ranks, and return the shifts
    of the nodes' clocks."""
    everything = pl.concat([pl.DataFrame(schema=dict(collectives.SCHEMA)), *exchanged])
    known = collectives.matched(everything, remarks)
    shifts = collectives.node_shifts(known, nodes, remarks)
    waited = collectives.waiting(known, shifts, remarks)
    sums = (
        pl.len().alias("matched"),
        pl.col("waiting_ns").sum(),
        pl.col("transfer_ns").sum(),
        pl.col("late_ns").sum(),
        pl.col("late").sum(),
    )
    for row, matched, waiting, transfer, _late, _times in (
        waited.group_by("row").agg(sums).sort("row").iter_rows()
    ):
        rows[row]["matched"] = matched
        rows[row] |= {"waiting_s": waiting / 1e9, "transfer_s": transfer / 1e9}
    for rank, matched, waiting, transfer, late, times in (
        waited.group_by("rank").agg(sums).sort("rank").iter_rows()
    ):
        ranks[rank] |= {
            "matched_collectives": matched,
            "waiting_s": waiting / 1e9,
            "transfer_s": transfer / 1e9,
            "late_s": late / 1e9,
            "late_collectives": times,
        }
    return shifts


def _bubble(
    rank: int,
    work: Mapping[int, pl.DataFrame],
    degrees: Degrees | None,
    ranks_per_node: int | None,
    shifts: Mapping[int, collectives.Shift],
) -> Known:
    """A rank's bubble: how long it only waited for its pipeline, in s, or None and why.

    The window of a step lasts from the first start to the last end of its kernels on any rank of
    the pipeline. The bubble is the part of it that the rank's kernels, except those of pipeline
    exchange, do not cover. With equal stages and no other waiting this is (p − 1) / (m + p − 1) of
    the window for p stages and m micro-batches: t_pb / (t_pb + t_id) of Narayanan et al.,
    "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC '21),
    section 2.2.
    """
    if degrees is None:
        return None, Reason("layout_unknown")
    if degrees.pp == 1:
        return None, Reason("no_pipeline")
    pipeline = next(ranks for ranks in group_members(degrees, "pp") if rank in ranks)
    if missing := [other for other in pipeline if other not in work]:
        return None, Reason("pipeline_rank_untraced", rank=missing[0])
    frames = []
    for other in pipeline:
        shift = collectives.Shift()
        if ranks_per_node is not None and other // ranks_per_node in shifts:
            shift = shifts[other // ranks_per_node]
        elif ranks_per_node is not None:
            return None, Reason("pipeline_clock_unaligned", other=other)
        times = (pl.col("start_ns"), pl.col("end_ns"))
        frames.append(work[other].with_columns(time + shift.at(time) for time in times))
    steps = [set(frame["step"]) for frame in frames]
    if not steps[0] or any(step != steps[0] for step in steps):
        return None, Reason("pipeline_steps_differ")
    windows = (
        pl.concat(frames)
        .group_by("step")
        .agg((pl.col("end_ns").max() - pl.col("start_ns").min()).alias("window_ns"))
    )
    whole, worked = int(windows["window_ns"].sum()), int(work[rank]["work_ns"].sum())
    return (whole - worked) / 1e9, ""


def _kernel_row(
    row: dict[str, Any], rank: Mapping[str, Any], peaks: Mapping[str, float]
) -> dict[str, Any]:
    """Complete a row of KERNELS: bandwidths, shares, and the reasons of null values."""
    matched = row.pop("matched", 0)
    reasons: dict[str, Reason] = {}
    whole = {**row, "share_of_span": row["covered_s"] / rank["span_s"] if rank["span_s"] else None}
    if row["class"] not in COMMUNICATION:
        whole |= missing({})
        return whole
    if row["group"] is None:
        reasons["group"] = Reason("group_not_named")
    if row["fabric"] is None:
        reasons["fabric"] = Reason("group_ranks_unknown")
    if row["bus_bytes"] is None:
        reasons["bus_bytes"] = Reason("message_sizes_unknown")
    if matched != row["kernels"]:
        whole |= dict.fromkeys(_ALIGNED)
        for name in _ALIGNED:
            reasons[name] = Reason("collectives_unmatched")
    whole["bus_bandwidth_bytes_per_s"] = _ratio(row["bus_bytes"], row["kernel_s"])
    whole["transfer_bandwidth_bytes_per_s"] = _ratio(row["bus_bytes"], whole["transfer_s"])
    peak = peaks.get(row["fabric"] or "")
    whole["link_share"] = _ratio(whole["transfer_bandwidth_bytes_per_s"], peak)
    if peak is None:
        reasons["link_share"] = Reason("link_peak_unknown")
    for name in ("message_bytes", "bus_bandwidth_bytes_per_s", "transfer_bandwidth_bytes_per_s"):
        if whole[name] is None:
            source = "bus_bytes" if row["bus_bytes"] is None else "transfer_s"
            reasons[name] = reasons.get(source, Reason("took_no_time"))
    if whole["link_share"] is None:
        reasons.setdefault("link_share", Reason("bandwidth_unknown"))
    whole |= missing(reasons)
    return whole


def _rank_row(row: dict[str, Any]) -> dict[str, Any]:
    """Complete a row of TRACES: shares, and the reasons of null values."""
    whole = dict(row)
    reasons: dict[str, Reason] = {}
    if reason := whole.pop("bubble_reason"):
        reasons["bubble_s"] = reason
    if whole["span_s"] is None:
        reasons["span_s"] = Reason("no_kernels")
    for name in (*_ALIGNED, "late_s", "late_collectives"):
        if name not in whole:
            reasons[name] = Reason("no_collective_matched")
    whole.setdefault("matched_collectives", 0)
    for share, part, of in (
        ("overlap_share", "overlapped_communication_s", "communication_s"),
        ("idle_share", "idle_s", "span_s"),
    ):
        whole[share] = _ratio(whole[part], whole[of])
        if whole[share] is None:
            reasons[share] = Reason("zero_or_null", of=of)
    whole["notes"] = json.dumps(row["notes"], ensure_ascii=False)
    whole |= missing(reasons)
    return whole


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
