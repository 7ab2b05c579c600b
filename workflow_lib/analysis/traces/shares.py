"""Shares of time of a profiled run, as means over its ranks."""

from __future__ import annotations

import polars as pl

#: name in PROFILED → the column of TRACES that is divided, and the one that it is divided by
_SHARES = {
    "exposed_communication_share": ("exposed_communication_s", "span_s"),
    "overlapped_communication_share": ("overlapped_communication_s", "communication_s"),
    "bubble_share": ("bubble_s", "span_s"),
    "idle_share": ("idle_s", "span_s"),
}


def profiled_shares(traces: pl.DataFrame) -> dict[str, float | None]:
    """The columns of :data:`~workflow_lib.records.measures.PROFILED` from a run's rows of TRACES.

    A share is null if a rank lacks one of its columns, or if the divisor is 0.
    """
    found: dict[str, float | None] = {}
    for name, (part, whole) in _SHARES.items():
        shares = [
            None if of is None or not all_of else of / all_of
            for of, all_of in traces.select(part, whole).iter_rows()
        ]
        known = [share for share in shares if share is not None]
        found[name] = sum(known) / len(known) if known and len(known) == len(shares) else None
    return found
