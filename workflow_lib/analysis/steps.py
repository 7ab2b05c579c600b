"""Reads what the ranks wrote: where they ran, the window that they measured, and its steps.

Converts the times of all nodes to one clock, that of rank 0's node, as the job compared them.

Steps and readings carry the time of their own node's clock. A step lasts from the first rank's
start to the last rank's end, so a clock that is 0.3 s ahead makes a step of 3.1 s seem a tenth
longer unless it is corrected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from workflow_lib.analysis.known import Values, Why
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.samples import read_files
from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import STEPS, STEPS_REQUIRED, RankRecord
from workflow_lib.records.files import read_if_there, read_record
from workflow_lib.records.nodes import NodeClock
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.reasons import Reason


def read_clocks(paths: RunPaths, nodes: Iterable[str]) -> dict[str, NodeClock]:
    """Node → how its clock compares with rank 0's, of the nodes that were compared. Raises
    RecordError if a file is damaged."""
    clocks = {node: read_if_there(paths.clock(node), NodeClock) for node in set(nodes)}
    return {node: clock for node, clock in clocks.items() if clock is not None}


def corrected(times: Any, clock: NodeClock | None) -> Any:
    """Convert times of a node's clock (s; a number, an array or an expression) to rank 0's clock.
    They stay as they are without ``clock``."""
    return times if clock is None else times - clock.ahead_at(times)


def clock_values(clocks: Mapping[str, NodeClock], nodes: int) -> Values:
    """The columns ``clock_skew_s`` and ``clock_error_s``: the largest skew of any node, which was
    corrected, and the largest error that may remain."""
    uncompared = [(node, clock.reason) for node, clock in clocks.items() if clock.reason]
    reason: Why = ""
    for node, why in uncompared[:1]:
        reason = Reason("clock_not_compared", node=node, why=why)
    if nodes == 1:
        reason = Reason("one_clock")
    elif len(clocks) < nodes:
        reason = Reason("not_told")
    if reason:
        return dict.fromkeys(("clock_skew_s", "clock_error_s"), (None, reason))
    return {
        "clock_skew_s": (max(clock.skew_s for clock in clocks.values()), ""),
        "clock_error_s": (max(clock.error_s for clock in clocks.values()), ""),
    }


#: a larger relative difference between the losses of two ranks is not rounding
_LOSS_ROUNDING = 1e-5


@dataclass(frozen=True)
class Steps:
    """The steps of a completed run, over all ranks, and which of them count for measures."""

    ranks: tuple[RankRecord, ...]
    #: every row of every rank, warm-up included, with ``rank`` and ``dp_rank`` beside
    #: :data:`~workflow_lib.records.contract.STEPS`
    rows: pl.DataFrame
    #: rows of the steps that count: the measured ones
    measured: pl.DataFrame
    #: from the first rank's start of the first of them to the last rank's end of the last one
    window: Window
    #: tokens of these steps over all replicas; with inference, those read and those generated
    tokens: int
    #: for inference, "prefill" and "decode" → the window of each of these steps, until its slowest
    #: rank
    phases: Mapping[str, tuple[Window, ...]]
    #: node → how its clock was corrected, if it was; all times are of rank 0's clock
    clocks: Mapping[str, NodeClock] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The number of the first step that counts."""
        return int(self.measured.select(pl.col("step").min()).item())


def read_steps(paths: RunPaths, cell: Cell) -> Steps:
    """Read what the ranks of a completed run wrote, and check that it is whole.

    Raises FileNotFoundError if a rank's file is missing, and RecordError if a file is damaged, a
    step is missing, or the ranks' tokens are not those that the cell asks for.
    """
    generates = cell.training.workload == "inference"
    required = (*STEPS_REQUIRED, *(("prefill_ended_unix_s",) if generates else ()))
    numbers = range(cell.degrees.world_size)
    ranks = [read_record(paths.rank(number), RankRecord) for number in numbers]
    files = [paths.rank_steps(number) for number in numbers]
    # A rank that tells no group trains on tokens of its own.
    has_groups = all(rank.dp_rank is not None for rank in ranks)
    replicas = {number: rank.dp_rank if has_groups else number for number, rank in enumerate(ranks)}
    rows = (
        read_files(files, STEPS, required)
        .rename({"file": "rank"})
        .with_columns(dp_rank=pl.col("rank").replace_strict(replicas, return_dtype=pl.Int64))
    )
    clocks = read_clocks(paths, {rank.node for rank in ranks})
    rows = _on_one_clock(rows, ranks, clocks)
    ranks = [
        replace(rank, started_unix_s=corrected(rank.started_unix_s, clocks.get(rank.node)))
        for rank in ranks
    ]
    measured = rows.filter(pl.col("phase") == "measured")
    _check_measured(paths, cell, measured)
    _check_tokens(paths, cell, measured)
    window = _window(measured)
    if window.duration_s <= 0:
        raise RecordError(
            f"{paths.steps}: the measured steps end at {window.end_unix_s}, before they begin"
        )
    training = cell.training
    tokens = training.global_batch_size * cell.model.sequence_length * training.measured_steps
    phases = _phases(paths, measured) if generates else {}
    return Steps(tuple(ranks), rows, measured, window, tokens, phases, clocks)


def loss_of_ranks(
    first: float | None, lowest: float | None, highest: float | None
) -> tuple[float | None, Why]:
    """The loss of a step, from those that ranks recorded: the first, the lowest and the highest; or
    None and why. Ranks that have a loss have that of the global batch, so all have the same."""
    if first is None or lowest is None or highest is None:
        return None, Reason("loss_not_recorded")
    if highest - lowest > _LOSS_ROUNDING * abs(first):
        return None, Reason("losses_differ", lowest=lowest, highest=highest)
    return first, ""


def _on_one_clock(
    rows: pl.DataFrame, ranks: Sequence[RankRecord], clocks: Mapping[str, NodeClock]
) -> pl.DataFrame:
    """The rows with all times converted to rank 0's clock."""
    times = [name for name in rows.columns if name.endswith("_unix_s")]
    for node, clock in clocks.items():
        of_node = pl.col("rank").is_in([rank.rank for rank in ranks if rank.node == node])
        for name in times:
            time = pl.col(name)
            one = pl.when(of_node).then(corrected(time, clock)).otherwise(time)
            rows = rows.with_columns(one.alias(name))
    return rows


def _window(measured: pl.DataFrame) -> Window:
    start, end = measured.select(pl.col("started_unix_s").min(), pl.col("ended_unix_s").max()).row(
        0
    )
    return Window(start, end)


def _phases(paths: RunPaths, measured: pl.DataFrame) -> dict[str, tuple[Window, ...]]:
    """The windows of each step's prefill (from the first rank's start to the last rank's end of
    prefill) and of its decode (from there to the last rank's end)."""
    times = (
        measured.group_by("step")
        .agg(
            pl.col("started_unix_s").min(),
            pl.col("prefill_ended_unix_s").max(),
            pl.col("ended_unix_s").max(),
        )
        .sort("step")
        .rows()
    )
    for step, start, prefilled, end in times:
        if not start < prefilled <= end:
            raise RecordError(
                f"{paths.steps}: step {step} began at {start}, its prefill ended at {prefilled} "
                f"and the step at {end}; expected times in this order"
            )
    return {
        "prefill": tuple(Window(start, prefilled) for _, start, prefilled, _ in times),
        "decode": tuple(Window(prefilled, end) for _, _, prefilled, end in times),
    }


def _check_measured(paths: RunPaths, cell: Cell, measured: pl.DataFrame) -> None:
    first, count = cell.training.warmup_steps, cell.training.measured_steps
    expected = list(range(first, first + count))
    steps, ranks = measured["step"].to_numpy(), measured["rank"].to_numpy()
    for rank in range(cell.degrees.world_size):
        begin, end = np.searchsorted(ranks, [rank, rank + 1])
        recorded = steps[begin:end].tolist()
        if recorded != expected:
            raise RecordError(
                f"{paths.rank_steps(rank)}: the measured steps are {_span(recorded)}, "
                f"expected {_span(expected)}; the run did not complete as its outcome says"
            )


def _span(steps: list[int]) -> str:
    return f"{steps[0]} to {steps[-1]} ({len(steps)})" if steps else "none"


def _check_tokens(paths: RunPaths, cell: Cell, measured: pl.DataFrame) -> None:
    """Check that all ranks of a replica have the same tokens, and all replicas together the
    batch's.

    ``measured`` has each rank's steps, one rank after the other.
    """
    steps = measured["step"].to_numpy()[: cell.training.measured_steps]
    of_ranks = measured["tokens"].to_numpy().reshape(-1, steps.size)
    dp_ranks = measured["dp_rank"].to_numpy()[:: steps.size]
    replicas = np.unique(dp_ranks)
    parts = [of_ranks[dp_ranks == replica] for replica in replicas]
    lowest = np.array([part.min(axis=0) for part in parts])
    highest = np.array([part.max(axis=0) for part in parts])
    for place, replica in np.argwhere((lowest != highest).T)[:1]:
        raise RecordError(
            f"{paths.steps}: in step {steps[place]} the ranks of replica {replicas[replica]} count "
            f"{lowest[replica, place]} to {highest[replica, place]} tokens, expected one number"
        )
    expected = cell.training.global_batch_size * cell.model.sequence_length
    totals = lowest.sum(axis=0)
    for place in np.flatnonzero(totals != expected)[:1]:
        raise RecordError(
            f"{paths.steps}: in step {steps[place]} the ranks count {totals[place]} tokens, "
            f"expected {expected} (global_batch_size {cell.training.global_batch_size} × "
            f"sequence_length {cell.model.sequence_length})"
        )
