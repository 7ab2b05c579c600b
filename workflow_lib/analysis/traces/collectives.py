"""Matches collectives over ranks: which rank came last, and how long the others waited for it.

The kernel of a collective starts when its rank arrives, and moves data once all ranks have arrived.
Until the last arrival it waits; from then on it transfers. Traces have no common number for a
collective, but all ranks of a group run its collectives in the same order. So the k-th of a kind
within a step is the same one on all ranks. If ranks ran different numbers of them, or the trace of
a member is missing, none of these is matched.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from workflow_lib.analysis.traces.decoding import Notes
from workflow_lib.analysis.traces.names import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL

#: columns of the communication kernels
SCHEMA: Mapping[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "node": pl.Int64,
    "row": pl.Int64,
    "class": pl.String,
    "step": pl.Int64,
    "communicator": pl.String,
    "members": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}

_SERIES = ("communicator", "class", "step")
_INSTANCE = (*_SERIES, "ordinal")
#: the fastest rate at which clocks drift or are slewed (adjtimex(2))
_FASTEST_DRIFT = 500e-6
#: no rank ends one of these before all ranks have begun it, and all end it at about the same time
_ENDS_TOGETHER = (ALL_REDUCE, ALL_GATHER, ALL_TO_ALL)


def matched(kernels: pl.DataFrame, notes: Notes) -> pl.DataFrame:
    """The kernels whose collective was traced on all of its ranks, with its number, ``ordinal``.

    ``kernels`` are as ``SCHEMA``. Those without a communicator are left out.
    """
    known = kernels.drop_nulls(["communicator", "members"]).sort("rank", "start_ns")
    known = known.with_columns(
        pl.int_range(pl.len()).over("rank", *_SERIES).alias("ordinal"),
        pl.len().over("rank", *_SERIES).alias("count"),
    ).with_columns(
        pl.col("rank").n_unique().over(_SERIES).alias("present"),
        pl.col("count").n_unique().over(_SERIES).alias("counts"),
    )
    agree = pl.col("counts") == 1
    whole = pl.col("present") == pl.col("members")
    if differing := known.filter(whole & ~agree).select(_SERIES).n_unique():
        notes.add("ranks ran different numbers of a collective, which were not matched", differing)
    if partial := known.filter(~whole).select(_SERIES).n_unique():
        notes.add("a collective was not traced on all of its ranks, and was not matched", partial)
    return known.filter(whole & agree & (pl.col("members") > 1)).select(*SCHEMA, "ordinal")


@dataclass(frozen=True)
class Shift:
    """The shift that is added to a node's times: a straight line over its own clock, since clocks
    drift."""

    origin_ns: int = 0
    constant_ns: float = 0.0
    slope: float = 0.0

    def at(self, times: pl.Expr) -> pl.Expr:
        """The shift of each of ``times``, in whole ns."""
        since = (times - self.origin_ns).cast(pl.Float64)
        return (self.constant_ns + self.slope * since).round().cast(pl.Int64)

    def after(self, other: Shift) -> Shift:
        """The shift that applies this one first, and then ``other`` to the shifted times."""
        return Shift(
            self.origin_ns,
            self.constant_ns + other.constant_ns + other.slope * self.constant_ns,
            self.slope + other.slope + other.slope * self.slope,
        )


def node_shifts(kernels: pl.DataFrame, nodes: Sequence[int], notes: Notes) -> dict[int, Shift]:
    """The shift of each node's times to the clock of the first node in ``nodes``.

    Ranks of a node share its clock. Two nodes are compared by the collectives that both take part
    in and that end on all ranks at once. The differences of these ends lie about a straight line,
    which network latency makes uncertain by some microseconds. A node that no such collective links
    to the first is left out. ``kernels`` are as :func:`matched` gives them. ``nodes`` are all nodes
    that have traces; it is empty if that is not known.
    """
    ends = (
        kernels.filter(pl.col("class").is_in(_ENDS_TOGETHER))
        .group_by(*_INSTANCE, "node")
        .agg(pl.col("end_ns").max())
    )
    pairs = (
        ends.join(ends, on=_INSTANCE, nulls_equal=True, suffix="_other")
        .filter(pl.col("node") != pl.col("node_other"))
        .sort("node", "node_other", "end_ns")
        .group_by("node", "node_other", maintain_order=True)
        .agg("end_ns", (pl.col("end_ns_other") - pl.col("end_ns")).alias("behind"))
    )
    origin_ns = min(ends["end_ns"].to_list(), default=0)
    lines = {
        (node, other): _line(origin_ns, times, behind)
        for node, other, times, behind in pairs.iter_rows()
    }
    shifts = {nodes[0]: Shift(origin_ns)} if nodes else {}
    waiting = list(shifts)
    while waiting:
        known = waiting.pop()
        for (node, other), line in lines.items():
            if other == known and node not in shifts:
                shifts[node] = line.after(shifts[known])
                waiting.append(node)
    if len(shifts) > 1:
        notes.add("clocks of nodes were aligned by the ends of collectives that span them")
    if apart := len(nodes) - len(shifts):
        notes.add("a node's clock could not be aligned with the others'", apart)
    return shifts


def _line(origin_ns: int, times_ns: Sequence[int], behind_ns: Sequence[int]) -> Shift:
    """Tukey's resistant line, through the medians of the first and the last third of the points.

    The slope is 0 if it would be steeper than clocks drift, which is noise of collectives that are
    close in time.
    """
    third = len(times_ns) // 3
    slope = 0.0
    if third:
        run = statistics.median(times_ns[-third:]) - statistics.median(times_ns[:third])
        rise = statistics.median(behind_ns[-third:]) - statistics.median(behind_ns[:third])
        if run > 0 and abs(rise) <= _FASTEST_DRIFT * run:
            slope = rise / run
    points = zip(times_ns, behind_ns, strict=True)
    constant = statistics.median(y - slope * (x - origin_ns) for x, y in points)
    return Shift(origin_ns, constant, slope)


def waiting(kernels: pl.DataFrame, shifts: Mapping[int, Shift], notes: Notes) -> pl.DataFrame:
    """``waiting_ns``, ``transfer_ns`` and ``late_ns`` of each matched kernel.

    ``late_ns`` is how long after the last but one rank the last one came: the time that would be
    saved if both came together. It is 0 on the other ranks. Collectives with a rank on a node
    without a shift are left out. If ``node`` is null, all times are taken to be of one clock.
    """
    node = pl.col("node")
    whole = (node.is_null() | node.is_in(list(shifts))).all().over(_INSTANCE)
    aligned = kernels.filter(whole)
    for node_name, shift in shifts.items():
        aligned = aligned.with_columns(
            pl.when(node == node_name).then(time + shift.at(time)).otherwise(time).alias(name)
            for name, time in (("start_ns", pl.col("start_ns")), ("end_ns", pl.col("end_ns")))
        )
    arrivals = aligned.group_by(_INSTANCE).agg(
        pl.col("start_ns").max().alias("last_ns"),
        pl.col("start_ns").sort(descending=True).get(1).alias("last_but_one_ns"),
        pl.col("rank").sort_by("start_ns", "rank").last().alias("late_rank"),
        pl.col("end_ns").min().alias("first_end_ns"),
    )
    timed = aligned.join(arrivals, on=_INSTANCE, nulls_equal=True)
    apart = timed.filter(
        pl.col("class").is_in(_ENDS_TOGETHER) & (pl.col("last_ns") > pl.col("first_end_ns"))
    )
    if wrong := apart.select(_INSTANCE).n_unique():
        notes.add("a collective ended on one rank before it began on another: clocks differ", wrong)
    begun = pl.min_horizontal("last_ns", "end_ns")
    behind = pl.col("last_ns") - pl.col("last_but_one_ns")
    late = (pl.col("rank") == pl.col("late_rank")) & (behind > 0)
    return timed.select(
        "rank",
        "row",
        (begun - pl.col("start_ns")).alias("waiting_ns"),
        (pl.col("end_ns") - begun).alias("transfer_ns"),
        pl.when(late).then(behind).otherwise(0).alias("late_ns"),
        late.alias("late"),
    )
