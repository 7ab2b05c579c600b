"""What sampling costs training: the time of steps at each rate, against steps without sampling.

Two runs differ by more than sampling costs, so the rates alternate within one run::

    blocks   |  10 Hz  |  0 Hz   |  50 Hz  |   1 Hz  |  0 Hz   |  …
    steps    |--|--|--|--|--|--|--|--|--|--|--|--|--|--|--|--|--|     not those across an edge
    pairs       10 Hz ↔ 0 Hz, 50 Hz ↔ the first 0 Hz, 1 Hz ↔ the second

Each block is compared with the nearest block without sampling, so that slow drift, as of
temperature, is in both. The interval is Student's t over pairs, widened where pairs share a block
without sampling. With ten pairs it covered the truth in 95 % of simulated runs, without the
widening in 93 %, and the percentile bootstrap's "95 %" interval did in 88 %.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from workflow_lib.analysis import metrics
from workflow_lib.analysis.samples import read_rows
from workflow_lib.analysis.steps import corrected, read_clocks
from workflow_lib.intervals import students_t
from workflow_lib.records.cell import Cell
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.reasons import Reason, missing
from workflow_lib.records.tables import OVERHEAD
from workflow_lib.records.telemetry_columns import SAMPLER_BLOCKS

#: fewer pairs do not show their own spread well enough for an interval
_FEWEST_PAIRS = 4

#: columns of OVERHEAD that describe one rate
_FIGURES = tuple(
    column.name
    for column in OVERHEAD
    if column.name not in ("cell", "run", "simulated", "missing_reasons", "missing_codes")
)


@dataclass(frozen=True)
class _Block:
    """A sampling block of all nodes, and the measured steps that lie wholly within it."""

    #: its place in time: how many block lengths after the epoch it begins
    number: int
    rate_hz: float
    step_times_s: tuple[float, ...]
    #: (node, its row of SAMPLER_BLOCKS)
    of_nodes: tuple[tuple[str, dict[str, Any]], ...]

    @property
    def step_time_s(self) -> float:
        """The median time of its steps, in s."""
        return metrics.median(self.step_times_s)


def overhead_rows(
    paths: RunPaths,
    cell: Cell,
    nodes: Sequence[str],
    measured: pl.DataFrame,
    simulated: bool | None,
) -> list[dict[str, Any]]:
    """Rows of OVERHEAD, less ``cell`` and ``run``: one for each rate of a run whose rates
    alternated.

    ``measured`` has the rows of the measured steps of every rank. Raises FileNotFoundError or
    RecordError if the blocks of a node are missing or damaged, or have other rates than those of
    other nodes.
    """
    blocks = [block for block in _blocks(paths, cell, nodes, measured) if block.step_times_s]
    unsampled = [block for block in blocks if block.rate_hz == 0]
    rows = []
    for rate_hz in sorted(set(cell.telemetry.interleaved_rates_hz)):
        of_rate = [block for block in blocks if block.rate_hz == rate_hz]
        row, reasons = _row(rate_hz, of_rate, unsampled)
        row["simulated"] = simulated
        if simulated is None:
            reasons["simulated"] = Reason("no_sampler")
        row |= missing(reasons)
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Pair:
    """A block's slowdown, and the numbers of the blocks without sampling that it is against."""

    slowdown: float
    against: tuple[int, ...]


def slowdown_interval(pairs: Sequence[Pair]) -> tuple[float, float]:
    """The 95 % interval of the mean slowdown of two or more pairs, by Student's t.

    The noise of a block that two pairs share is in both, so their mean varies more than their
    differences show. If every block has the same noise, the shares of blocks in pairs tell how much
    more; variances here are in those of a block.
    """
    count = len(pairs)
    of_sum, of_each = float(count), float(count)
    shares: dict[int, float] = {}
    for pair in pairs:
        of_each += 1 / len(pair.against)
        for number in pair.against:
            shares[number] = shares.get(number, 0.0) + 1 / len(pair.against)
    of_sum += sum(share**2 for share in shares.values())
    expected = (of_each - of_sum / count) / (count - 1)
    slowdowns = [pair.slowdown for pair in pairs]
    mean = statistics.fmean(slowdowns)
    error = statistics.stdev(slowdowns) * math.sqrt(of_sum / expected) / count
    half = students_t.quantile(count - 1) * error
    return mean - half, mean + half


def _blocks(
    paths: RunPaths, cell: Cell, nodes: Sequence[str], measured: pl.DataFrame
) -> list[_Block]:
    """The run's blocks in the order of time, each cut to the time in which all nodes were in it."""
    block_s = cell.telemetry.block_s
    required = tuple(column.name for column in SAMPLER_BLOCKS)
    by_number: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    clocks = read_clocks(paths, nodes)
    for node in nodes:
        path = paths.sampler_blocks(node)
        for row in read_rows(path, SAMPLER_BLOCKS, required).iter_rows(named=True):
            middle_unix_s = (row["started_unix_s"] + row["ended_unix_s"]) / 2
            for name in ("started_unix_s", "ended_unix_s"):
                row[name] = corrected(row[name], clocks.get(node))
            by_number.setdefault(int(middle_unix_s // block_s), []).append((node, row))
    times = (
        measured.group_by("step")
        .agg(pl.col("started_unix_s").min(), pl.col("ended_unix_s").max())
        .sort("step")
    )
    blocks = []
    for number, of_nodes in sorted(by_number.items()):
        rates = {row["sample_rate_hz"] for _, row in of_nodes}
        if len(rates) > 1:
            raise RecordError(
                f"{paths.telemetry}: in block {number}, from {number * block_s:g} s on, nodes "
                f"sampled at {', '.join(f'{rate:g} Hz' for rate in sorted(rates))}; expected one "
                "rate: were their clocks set during the run?"
            )
        if {node for node, _ in of_nodes} != set(nodes):
            continue
        start_unix_s = max(row["started_unix_s"] for _, row in of_nodes)
        end_unix_s = min(row["ended_unix_s"] for _, row in of_nodes)
        inside = times.filter(
            (pl.col("started_unix_s") >= start_unix_s) & (pl.col("ended_unix_s") <= end_unix_s)
        )
        durations = inside.select(pl.col("ended_unix_s") - pl.col("started_unix_s")).to_series()
        blocks.append(_Block(number, rates.pop(), tuple(durations.to_list()), tuple(of_nodes)))
    return blocks


def _row(
    rate_hz: float, blocks: Sequence[_Block], unsampled: Sequence[_Block]
) -> tuple[dict[str, Any], dict[str, Reason]]:
    """The values of one rate's row, and a reason for each that is null."""
    row: dict[str, Any] = {
        **dict.fromkeys(_FIGURES),
        "sample_rate_hz": rate_hz,
        "blocks": len(blocks),
        "steps": sum(len(block.step_times_s) for block in blocks),
        "pairs": 0,
    }
    if not blocks:
        reason = Reason("no_step_in_block", rate_hz=rate_hz)
        return row, dict.fromkeys((name for name in _FIGURES if row[name] is None), reason)
    reasons: dict[str, Reason] = {}
    row["step_time_s"] = metrics.median(t for block in blocks for t in block.step_times_s)
    pairs = [] if rate_hz == 0 else [_pair(block, unsampled) for block in blocks if unsampled]
    row["pairs"] = len(pairs)
    if pairs:
        row["slowdown"] = sum(pair.slowdown for pair in pairs) / len(pairs)
    else:
        reasons["slowdown"] = (
            Reason("compared_rate") if rate_hz == 0 else Reason("no_unsampled_step")
        )
    if len(pairs) >= _FEWEST_PAIRS:
        row["slowdown_low"], row["slowdown_high"] = slowdown_interval(pairs)
    else:
        few = Reason("too_few_pairs", fewest_pairs=_FEWEST_PAIRS, have=len(pairs))
        for name in ("slowdown_low", "slowdown_high"):
            reasons[name] = reasons.get("slowdown", few)
    row |= _cost(blocks)
    if row["late_share"] is None:
        reasons["late_share"] = Reason("no_tick_due", rate_hz=rate_hz)
    return row, reasons


def _pair(block: _Block, unsampled: Sequence[_Block]) -> Pair:
    """The slowdown: the block's step time over that of the nearest block without sampling, minus 1.

    If two are equally near, one before and one after, their mean is taken.
    """
    nearest = min(abs(other.number - block.number) for other in unsampled)
    near = [other for other in unsampled if abs(other.number - block.number) == nearest]
    step_time_s = statistics.fmean(other.step_time_s for other in near)
    return Pair(block.step_time_s / step_time_s - 1, tuple(other.number for other in near))


def _cost(blocks: Sequence[_Block]) -> Mapping[str, float | None]:
    """How well the samplers kept their rate in these blocks, and the CPU time and
    memory they used."""
    rows = [(node, row) for block in blocks for node, row in block.of_nodes]
    cpu_s: dict[str, float] = {}
    elapsed_s: dict[str, float] = {}
    for node, row in rows:
        cpu_s[node] = cpu_s.get(node, 0.0) + row["cpu_time_s"]
        duration_s = row["ended_unix_s"] - row["started_unix_s"]
        elapsed_s[node] = elapsed_s.get(node, 0.0) + duration_s
    ticks = sum(row["ticks"] for _, row in rows)
    late = sum(row["late_ticks"] for _, row in rows)
    missed = sum(row["missed_ticks"] for _, row in rows)
    return {
        "sampler_cpu_share": max(cpu_s[node] / elapsed_s[node] for node in cpu_s),
        "sampler_memory_bytes": float(max(row["memory_bytes"] for _, row in rows)),
        "achieved_rate_hz": ticks / sum(elapsed_s.values()),
        "late_share": (late + missed) / (ticks + missed) if ticks + missed else None,
    }
