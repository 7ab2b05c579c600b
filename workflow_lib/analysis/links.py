"""Bytes over the links of each GPU in the steps that count, from counters that its rank read.

A rank reads its GPU's counters between steps (trainers/native/links.py), so their growth
is that of whole steps. The steps that count get a share of it in proportion to their number. The
sampler's readings are not used, because they fall anywhere within a step.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from workflow_lib.analysis.clocks import corrected
from workflow_lib.analysis.known import Known, Values
from workflow_lib.analysis.steps import Steps
from workflow_lib.records import NOT_TOLD, LinkCount, NodeClock, RunPaths, read_if_there

#: column → field of LinkReading
COLUMNS = {"gpu_link_received_bytes": "received_bytes", "gpu_link_sent_bytes": "sent_bytes"}

#: far below the 0.25 s that a rank rests before it reads, and above the error of corrected times
_ROUNDING_S = 0.02
_NOT_COUNTED = "an earlier version made the run, and its ranks did not count whole steps"


def link_values(
    paths: RunPaths, ranks: Mapping[tuple[str, int], int], steps: Steps
) -> dict[tuple[str, int], Values]:
    """Bytes of each GPU, by node and number, over the ``steps`` that count.

    ``ranks`` maps each GPU, by node and number, to the rank that used it. Raises RecordError if a
    count is damaged.
    """
    counted_steps = steps.measured["step"].n_unique()
    found: dict[tuple[str, int], Values] = {}
    for (node, gpu), rank in ranks.items():
        count = read_if_there(paths.link_count(rank), LinkCount)
        own = steps.rows.filter(pl.col("rank") == rank)
        reason = _why_not(count, own, steps.clocks.get(node))
        if count is None and steps.ranks[rank].parameters is None:
            reason = NOT_TOLD
        found[node, gpu] = {
            column: _bytes(count, each, counted_steps) if count and not reason else (None, reason)
            for column, each in COLUMNS.items()
        }
    return found


def _why_not(count: LinkCount | None, rows: pl.DataFrame, clock: NodeClock | None) -> str:
    """Why a rank's count is not that of the whole steps of ``rows``, its own; "" if it is."""
    if count is None:
        return _NOT_COUNTED
    if count.before is None or count.after is None or not count.steps:
        return count.reason or "no whole step was counted"
    counted = rows.filter(pl.col("step") >= count.first_step)
    if len(counted) != count.steps:
        return (
            f"the rank counted {count.steps} steps from step {count.first_step} on, and recorded "
            f"{len(counted)}"
        )
    before, after = (corrected(each.unix_time_s, clock) for each in (count.before, count.after))
    earlier = rows.filter(pl.col("step") < count.first_step)["ended_unix_s"]
    late_s = [*(earlier - before), *(before - counted["started_unix_s"])]
    if max(*late_s, *(counted["ended_unix_s"] - after)) > _ROUNDING_S:
        return "the link counters were read within steps, not between them"
    return ""


def _bytes(count: LinkCount, field: str, counted_steps: int) -> Known:
    rose = getattr(count.after, field) - getattr(count.before, field)
    if rose < 0:
        return None, "the link counters ran backwards: the GPU was reset, or they restarted"
    return rose / count.steps * counted_steps, ""
