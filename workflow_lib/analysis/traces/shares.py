"""What the traces of a profiled run come to: shares of time, means over its ranks."""

from __future__ import annotations

import polars as pl

#: each of PROFILED: a column of TRACES, over which other
_SHARES = {
    "exposed_communication_share": ("exposed_communication_s", "span_s"),
    "overlapped_communication_share": ("overlapped_communication_s", "communication_s"),
    "bubble_share": ("bubble_s", "span_s"),
    "idle_share": ("idle_s", "span_s"),
}


def profiled_shares(traces: pl.DataFrame) -> dict[str, float | None]:
    """The columns of :data:`~workflow_lib.records.measures.PROFILED` from a run's rows of TRACES.

    Null where a rank lacks what it is made of, and where there is nothing to be a share of.
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
