"""The same collective on several ranks: who came last, and how long the others waited for it.

A collective's kernel starts when its rank arrives, and moves data once all have: until the last
arrival it waits, from then on it transfers. Ranks name no collective that they share, but run those
of one group in one order, so the k-th of a kind within a step is the same one everywhere. Where
ranks disagree on their number, or the trace of a member is missing, none of these is matched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from workflow_lib.analysis.traces.names import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL
from workflow_lib.analysis.traces.notes import Notes

#: of every communication kernel
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
#: no rank can end one of these before all have begun, nor much before another does
_ENDS_TOGETHER = (ALL_REDUCE, ALL_GATHER, ALL_TO_ALL)


def matched(kernels: pl.DataFrame, notes: Notes) -> pl.DataFrame:
    """The kernels whose collective is known on all of its ranks, with ``ordinal``.

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


def node_offsets_ns(kernels: pl.DataFrame, nodes: Sequence[int], notes: Notes) -> dict[int, int]:
    """What to add to each node's times so that all nodes have one clock, in ns.

    Ranks of a node share its clock. Two nodes are compared by the collectives that both take part
    in and that end everywhere at once: their clocks differ by the median difference of the ends,
    which network latency makes uncertain by some microseconds. A node that no such collective
    links to the first is left out. ``kernels`` are as :func:`matched` gives them, ``nodes`` are all
    that have traces, none where that is not known.
    """
    ends = (
        kernels.filter(pl.col("class").is_in(_ENDS_TOGETHER))
        .group_by(*_INSTANCE, "node")
        .agg(pl.col("end_ns").max())
    )
    pairs = (
        ends.join(ends, on=_INSTANCE, nulls_equal=True, suffix="_other")
        .filter(pl.col("node") < pl.col("node_other"))
        .group_by("node", "node_other")
        .agg((pl.col("end_ns") - pl.col("end_ns_other")).median().alias("ahead"))
        .sort("node", "node_other")
    )
    differences = {(a, b): round(ahead) for a, b, ahead in pairs.iter_rows()}
    offsets = {nodes[0]: 0} if nodes else {}
    waiting = list(offsets)
    while waiting:
        known = waiting.pop()
        for (a, b), ahead in differences.items():
            if a == known and b not in offsets:
                offsets[b] = offsets[a] + ahead
                waiting.append(b)
            elif b == known and a not in offsets:
                offsets[a] = offsets[b] - ahead
                waiting.append(a)
    if len(offsets) > 1:
        notes.add("clocks of nodes were aligned by the ends of collectives that span them")
    if apart := len(nodes) - len(offsets):
        notes.add("a node's clock could not be aligned with the others'", apart)
    return offsets


def waiting(kernels: pl.DataFrame, offsets_ns: Mapping[int, int], notes: Notes) -> pl.DataFrame:
    """``waiting_ns``, ``transfer_ns`` and ``late_ns`` of each matched kernel.

    ``late_ns`` is how long after the last but one the last rank came: what would have been saved,
    had it come with that one. It is 0 on the others. Collectives with a rank on a node without an
    offset are left out; without nodes (null), all times are taken to be of one clock.
    """
    offset = pl.col("node").replace_strict(dict(offsets_ns), default=None, return_dtype=pl.Int64)
    aligned = kernels.with_columns(
        pl.when(pl.col("node").is_null()).then(0).otherwise(offset).alias("offset")
    )
    aligned = aligned.filter(pl.col("offset").is_not_null().all().over(_INSTANCE)).with_columns(
        pl.col("start_ns", "end_ns") + pl.col("offset")
    )
    arrivals = aligned.group_by(_INSTANCE).agg(
        pl.col("start_ns").max().alias("last_ns"),
        pl.col("start_ns").sort(descending=True).get(1).alias("last_but_one_ns"),
        pl.col("rank").sort_by("start_ns", "rank").last().alias("late_rank"),
        pl.col("end_ns").min().alias("first_end_ns"),
    )
    found = aligned.join(arrivals, on=_INSTANCE, nulls_equal=True)
    apart = found.filter(
        pl.col("class").is_in(_ENDS_TOGETHER) & (pl.col("last_ns") > pl.col("first_end_ns"))
    )
    if wrong := apart.select(_INSTANCE).n_unique():
        notes.add("a collective ended on one rank before it began on another: clocks differ", wrong)
    begun = pl.min_horizontal("last_ns", "end_ns")
    behind = pl.col("last_ns") - pl.col("last_but_one_ns")
    late = (pl.col("rank") == pl.col("late_rank")) & (behind > 0)
    return found.select(
        "rank",
        "row",
        (begun - pl.col("start_ns")).alias("waiting_ns"),
        (pl.col("end_ns") - begun).alias("transfer_ns"),
        pl.when(late).then(behind).otherwise(0).alias("late_ns"),
        late.alias("late"),
    )
