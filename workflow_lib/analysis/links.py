"""Bytes over the links of each GPU in the steps that count, from counters that its rank read.

A rank reads its GPU's counters between steps (:mod:`workflow_lib.training.links`), so their growth
is that of whole steps. The steps that count get a share of it in proportion to their number. The
sampler's readings are not used, because they fall anywhere within a step.
"""

from __future__ import annotations

from collections.abc import Mapping

from workflow_lib.analysis.known import Known, Values
from workflow_lib.records import LinkCount, RunPaths, read_if_there

#: column → field of LinkReading
COLUMNS = {"gpu_link_received_bytes": "received_bytes", "gpu_link_sent_bytes": "sent_bytes"}

_NOT_COUNTED = "an earlier version made the run, and its ranks did not count whole steps"


def link_values(
    paths: RunPaths, ranks: Mapping[tuple[str, int], int], counted_steps: int
) -> dict[tuple[str, int], Values]:
    """Bytes of each GPU, by node and number, over ``counted_steps`` steps.

    ``ranks`` maps each GPU, by node and number, to the rank that used it. Raises RecordError if a
    count is damaged.
    """
    counts = {gpu: read_if_there(paths.link_count(rank), LinkCount) for gpu, rank in ranks.items()}
    return {
        gpu: {column: _bytes(count, each, counted_steps) for column, each in COLUMNS.items()}
        for gpu, count in counts.items()
    }


def _bytes(count: LinkCount | None, field: str, counted_steps: int) -> Known:
    if count is None:
        return None, _NOT_COUNTED
    if count.before is None or count.after is None or not count.steps:
        return None, count.reason or "no whole step was counted"
    rose = getattr(count.after, field) - getattr(count.before, field)
    if rose < 0:
        return None, "the link counters ran backwards: the GPU was reset, or they restarted"
    return rose / count.steps * counted_steps, ""
