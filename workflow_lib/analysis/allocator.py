"""Whether torch's allocator ran short of GPU memory in the steps that count.

Each rank records its allocator's counts at the end of each step, so the growth from the last step
of the warm-up to the last measured step is that of the measured steps.
"""

from __future__ import annotations

import polars as pl

from workflow_lib.analysis.known import Known, Values, known
from workflow_lib.analysis.steps import Steps
from workflow_lib.records import NOT_TOLD, RankRecord

#: measures of a run and columns of a GPU, which are columns of STEPS
COUNTS = ("allocator_retries", "allocator_frees")
_CPU = "trained on a CPU, whose memory torch's allocator of GPU memory does not hold"
_EARLIER = "an earlier version made the run, and its ranks did not record their allocator"


def allocator_values(steps: Steps) -> Values:
    """The measures of a run: sums over ranks, whether there was pressure, and the settings."""
    counts = [counts_of_rank(steps, rank) for rank in steps.ranks]
    found: Values = {name: _sum([count[name] for count in counts]) for name in COUNTS}
    values = [found[name][0] for name in COUNTS]
    pressure = None if None in values else False
    if any(value is not None and value > 0 for count in counts for value, _ in count.values()):
        pressure = True
    why = next((found[name][1] for name in COUNTS if found[name][0] is None), "")
    found["memory_pressure"] = known(pressure, why)
    told = {rank.allocator for rank in steps.ranks}
    absent = next((_why_absent(rank) for rank in steps.ranks if rank.allocator is None), "")
    found["allocator"] = known(None if None in told else "; ".join(sorted(map(str, told))), absent)
    return found


def counts_of_rank(steps: Steps, rank: RankRecord) -> Values:
    """How much a rank's counts rose in the steps that count."""
    rows = steps.rows.filter(pl.col("rank") == rank.rank).sort("step")
    before = rows.filter(pl.col("step") < steps.first).tail(1)
    after = rows.tail(1)
    return {name: _rise(rank, before[name].to_list(), after[name].item()) for name in COUNTS}


def _why_absent(rank: RankRecord) -> str:
    if not rank.on_gpu:
        return _CPU
    return NOT_TOLD if rank.parameters is None else _EARLIER


def _rise(rank: RankRecord, before: list[int | None], after: int | None) -> Known:
    if rank.allocator is None or not rank.on_gpu:
        return None, _why_absent(rank)
    if after is None:
        return None, f"torch's allocator does not count them ({rank.allocator})"
    if not before:
        return None, "without a warm-up, counts of before the measured steps are not known"
    if before[0] is None or before[0] > after:
        return None, f"rank {rank.rank}: the counts of torch's allocator ran backwards"
    return after - before[0], ""


def _sum(counts: list[Known]) -> Known:
    """The sum over ranks; null if one of them has none."""
    for value, reason in counts:
        if value is None:
            return None, reason
    return sum(value for value, _ in counts), ""
