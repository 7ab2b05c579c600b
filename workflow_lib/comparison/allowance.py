"""By how much hosts and dates may change the difference of two cells.

If runs are apart in time (:mod:`workflow_lib.intervals.design`), an effect on only one of the sides
looks like a difference, so an allowance is made for it: by how much two hosts of one kind differ at
most, in as many cases as the interval is to hold (:mod:`workflow_lib.intervals.hosts`). An effect
of dates was not measured apart, and is assumed to be no greater. Nothing is allowed in blocks, nor
within hosts: both sides then had the same dates and nodes. There is one exception. If the same side
ran first in every session of a host, what is peculiar to first runs acted on this side only.

Hosts differ far more in cells whose GPUs wait for the host's CPU. For shares of time the effect is
unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workflow_lib.comparison.measures import is_ratio, is_temperature
from workflow_lib.intervals import hosts
from workflow_lib.intervals.design import Design, Run
from workflow_lib.intervals.differences import COVERAGE
from workflow_lib.records import Measure

#: GPUs that run kernels for a smaller share of the time wait for their host
_BUSY_SHARE = 0.9


def allowance(
    measure: Measure, of: Design, waits: bool = False, coverage: float = COVERAGE
) -> float | None:
    """What hosts and dates may make of a measure where there is no difference: a share of a ratio,
    or an amount; None where that is unknown. Nothing where they act on both sides alike. ``waits``
    says whether GPUs wait for their host.
    """
    if not of.one_sided_because:
        return 0.0
    if is_ratio(measure):
        spread = hosts.WAITING_SPREAD if waits else hosts.BUSY_SPREAD
        return round(math.expm1(spread.of_two(coverage)), 3)
    spread = hosts.WAITING_SPREAD_C if waits else hosts.BUSY_SPREAD_C
    return round(spread.of_two(coverage), 1) if is_temperature(measure) else None


def waits_for_host(runs: Sequence[Run]) -> bool:
    """Whether the GPUs of a run wait for their host: for kernels, or for bytes that its CPU moves
    between emulated nodes. Runs whose use of GPUs is not known count as busy."""
    shares = [run["gpu_utilisation_share"] for run in runs]
    is_idle = any(share is not None and share < _BUSY_SHARE for share in shares)
    return is_idle or any(run["emulated"] for run in runs)
