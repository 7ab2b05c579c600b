"""How one rank spent its time: what its kernels cover, together and class by class.

The definitions are those of HolisticTraceAnalysis; overlapping intervals are merged first. The
*span* lasts from the first start to the last end of any kernel, copy or set. *Idle* is the part of
it that none of them covers. If a trace holds several GPUs, all times are sums over these, each of
which has the whole span. Communication is *overlapped* while a computation kernel runs too, and
*exposed* otherwise. A copy does not overlap communication, and neither does a kernel of unknown
class.

Bytes of a collective, as nccl-tests counts them (its ``doc/PERFORMANCE.md``).

The size S of an all-reduce, all-to-all, broadcast or send is what each rank sends. S of an
all-gather is its whole result, and S of a reduce-scatter its whole input, over all ranks. Whatever
the algorithm, a bus must carry S times a factor that depends on the number of ranks n. So ``S ·
factor / time`` can be compared with the peak of a link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from workflow_lib.analysis.traces import names
from workflow_lib.analysis.traces.batches import Collective
from workflow_lib.analysis.traces.groups import axis_of, fabric_of, listed_ranks
from workflow_lib.analysis.traces.names import (
    COMMUNICATION,
    COMPUTATION,
    MEMORY,
    SEND_RECEIVE,
    UNKNOWN,
)
from workflow_lib.analysis.traces.reading import Trace
from workflow_lib.records.degrees import Degrees


def message_bytes(collective: Collective, kind: str) -> int | None:
    """S in bytes; None if the trace does not say."""
    element = names.ELEMENT_BYTES.get(collective.element_type or "")
    sent, received = collective.sent_elements, collective.received_elements
    if element is None or sent is None or received is None or min(sent, received) < 0:
        return None
    if kind in (names.ALL_GATHER, names.REDUCE_SCATTER, names.SEND_RECEIVE):
        return max(sent, received) * element
    return sent * element


def bus_factor(kind: str, ranks: int | None) -> float | None:
    """The factor of S; None if the number of ranks is not known, or nccl-tests has no factor."""
    if kind in (names.SEND_RECEIVE, names.BROADCAST):
        return 1.0
    if ranks is None or ranks < 1:
        return None
    if kind == names.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if kind in (names.ALL_GATHER, names.REDUCE_SCATTER, names.ALL_TO_ALL):
        return (ranks - 1) / ranks
    return None


def covered_ns(kernels: pl.DataFrame) -> int:
    """The length of the union of ``[start_ns, end_ns)``, in ns, summed over the GPUs of
    ``device``; ``kernels`` are sorted by start.

    Each interval adds the part of it that lies after the ends of all intervals before.
    """
    if kernels["device"].n_unique() > 1:
        of_devices = kernels.partition_by("device", maintain_order=True)
        return sum(covered_ns(of_device) for of_device in of_devices)
    before = pl.col("end_ns").cum_max().shift(1).fill_null(pl.col("start_ns").min())
    added = (pl.col("end_ns") - pl.max_horizontal("start_ns", before)).clip(lower_bound=0)
    return int(kernels.select(added.sum()).item())


#: the columns that identify a row of kernels.parquet within a run and rank
ROW = ("class", "group", "fabric")


def with_groups(
    trace: Trace, rank: int, degrees: Degrees | None, ranks_per_node: int | None
) -> pl.DataFrame:
    """A trace's kernels with columns on the communicator of each, as far as it is known.

    Adds ``group``, ``fabric``, ``communicator`` (a text that is the same on all its ranks),
    ``members`` (its number of ranks), ``message_bytes`` and ``bus_bytes``.
    """
    kernels = trace.kernels
    pairs = kernels.filter(pl.col("class").is_in(COMMUNICATION)).select("class", "collective")
    rows = [
        {
            "class": kind,
            "collective": index,
            **_described(
                None if index is None else trace.collectives[index],
                kind,
                rank,
                trace.groups,
                degrees,
                ranks_per_node,
            ),
        }
        for kind, index in pairs.unique().iter_rows()
    ]
    schema = {
        "class": pl.String,
        "collective": pl.Int32,
        "group": pl.String,
        "fabric": pl.String,
        "communicator": pl.String,
        "members": pl.Int64,
        "message_bytes": pl.Int64,
        "bus_bytes": pl.Float64,
    }
    described = pl.DataFrame(rows, schema)
    on = ["class", "collective"]
    return kernels.join(described, on=on, how="left", nulls_equal=True, maintain_order="left")


def _described(
    collective: Collective | None,
    kind: str,
    rank: int,
    groups: dict[str, tuple[int, ...]],
    degrees: Degrees | None,
    ranks_per_node: int | None,
) -> dict[str, Any]:
    alike = {ranks: name for name, ranks in groups.items() if len(ranks) > 1}
    if collective is None and len(alike) == 1:
        # gloo does not name its groups, but all groups of two or more ranks have the same ranks.
        ((shared, name),) = alike.items()
        collective = Collective(group=name, group_size=len(shared))
    if collective is None:
        # If no other axis sends and receives, a send-receive kernel belongs to the pipeline.
        lone = kind == SEND_RECEIVE and degrees is not None and degrees.pp > 1 and degrees.ep == 1
        return {"group": "PP" if lone else None}
    size = collective.group_size
    ranks = listed_ranks(collective.ranks, size) or groups.get(collective.group or "")
    pair = _pair(collective, rank) if kind == SEND_RECEIVE else None
    using = pair or ranks
    members = len(using) if using else size
    if kind == SEND_RECEIVE and pair is None and members != 2:
        communicator = None  # the trace does not say which two ranks exchange
    elif using:
        communicator = (">" if pair else ",").join(map(str, using))
    else:
        communicator = None if collective.group is None else f"group {collective.group}"
    size_bytes, factor = message_bytes(collective, kind), bus_factor(kind, members)
    known = size_bytes is not None and factor is not None
    return {
        "group": axis_of(using, collective.description, kind, rank, degrees),
        "fabric": fabric_of(using, ranks_per_node),
        "communicator": communicator,
        "members": members,
        "message_bytes": size_bytes,
        "bus_bytes": size_bytes * factor if known else None,  # type: ignore[operator]
    }


def _pair(collective: Collective, rank: int) -> tuple[int, int] | None:
    """The sending and the receiving rank. Torch records the destination on the sender and the
    source on the receiver. None if it records neither."""
    source, destination = collective.source, collective.destination
    if source is None and destination is None:
        return None
    return (rank if source is None else source, rank if destination is None else destination)


def rank_times(kernels: pl.DataFrame) -> dict[str, float | None]:
    """The span, and the time that each kind of kernel covers of it, in s; all null
    without kernels."""
    computing = pl.col("class").is_in(COMPUTATION)
    communicating = pl.col("class").is_in(COMMUNICATION)
    span = kernels.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item()
    span = None if span is None else span * kernels["device"].n_unique()
    computation = covered_ns(kernels.filter(computing))
    communication = covered_ns(kernels.filter(communicating))
    either = covered_ns(kernels.filter(computing | communicating))
    times = {
        "computation_s": computation,
        "unknown_s": covered_ns(kernels.filter(pl.col("class") == UNKNOWN)),
        "memory_s": covered_ns(kernels.filter(pl.col("class") == MEMORY)),
        "communication_s": communication,
        "exposed_communication_s": either - computation,
        "overlapped_communication_s": computation + communication - either,
        "idle_s": (span or 0) - covered_ns(kernels),
    }
    if span is None:
        return dict.fromkeys(("span_s", *times))
    return {"span_s": span / 1e9, **{name: ns / 1e9 for name, ns in times.items()}}


def class_rows(kernels: pl.DataFrame) -> list[dict[str, Any]]:
    """A row for each class, group and fabric: counts, seconds and bytes.

    ``message_bytes`` and ``bus_bytes`` are null unless all of a row's kernels have them.
    """
    computation = kernels.filter(pl.col("class").is_in(COMPUTATION))
    computation_ns = covered_ns(computation)
    rows = []
    for key, part in sorted(kernels.group_by(ROW), key=lambda pair: tuple(map(str, pair[0]))):
        kind = key[0]
        row = dict(zip(ROW, key, strict=True))
        row |= {
            "kernels": part.height,
            "kernel_s": part.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() / 1e9,
            "covered_s": covered_ns(part.sort("start_ns")) / 1e9,
        }
        if kind in COMMUNICATION:
            both = pl.concat([computation, part]).sort("start_ns")
            row["exposed_s"] = (covered_ns(both) - computation_ns) / 1e9
            row["overlapped_s"] = row["covered_s"] - row["exposed_s"]
            for name in ("message_bytes", "bus_bytes"):
                row[name] = None if part[name].has_nulls() else part[name].sum()
        rows.append(row)
    return rows


def step_work(kernels: pl.DataFrame) -> pl.DataFrame:
    """When each step's kernels began and ended, and how long all but pipeline exchange ran."""
    exchange = (pl.col("class") == SEND_RECEIVE) & (pl.col("group") == "PP")
    rows: list[Sequence[int | None]] = []
    stepped = kernels.filter(pl.col("step").is_not_null())
    for (step,), part in (stepped if stepped.height else kernels).group_by("step"):
        work = part.filter(~exchange.fill_null(False)).sort("start_ns")
        rows.append((step, part["start_ns"].min(), part["end_ns"].max(), covered_ns(work)))  # type: ignore[arg-type]
    schema = dict.fromkeys(("step", "start_ns", "end_ns", "work_ns"), pl.Int64)
    return pl.DataFrame(rows, schema, orient="row").sort("step")
