"""Shares of time of a profiled run, as means over its ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import polars as pl

from workflow_lib.analysis.traces.names import COMMUNICATION, COMPUTATION, UNKNOWN

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
    found = {
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
        found[name] = _mean(_of_kernel_time(kernels, classes, traces["rank"]))
    return found


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
