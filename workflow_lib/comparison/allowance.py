"""By how much dates and nodes may change the difference of two cells.

If runs are apart in time (:mod:`workflow_lib.intervals.design`), an effect on only one of the sides
looks like a difference, so an allowance is made for it. Nothing is allowed in blocks, nor within
hosts: both sides then had the same dates and nodes. There is one exception. If the same side ran
first in every session of a host, what is peculiar to first runs acted on this side only.

The allowance is assumed, not measured. Dates and nodes are taken to change a rate, a time or an
energy by 0.5 % (one standard deviation), and a temperature by 1 °C. The difference of two sides
then lies within 1.96·√2 times as much in 95 % of cases. For shares of time the effect is unknown.
"""

from __future__ import annotations

import math

from workflow_lib.comparison.measures import is_ratio, is_temperature
from workflow_lib.intervals.design import Design
from workflow_lib.records import Measure

_TWO_SIDES = 1.96 * math.sqrt(2)
#: by how much dates and nodes may change a ratio of 1, and a difference in °C
RATIO_ALLOWANCE = round(_TWO_SIDES * 0.005, 3)
TEMPERATURE_ALLOWANCE_C = round(_TWO_SIDES * 1.0, 1)


def allowance(measure: Measure, of: Design) -> float | None:
    """What dates and nodes may make of a measure where there is no difference: a share of a ratio,
    or an amount; None where that is unknown. Nothing where they act on both sides alike.
    """
    if not of.one_sided_because:
        return 0.0
    if is_ratio(measure):
        return RATIO_ALLOWANCE
    return TEMPERATURE_ALLOWANCE_C if is_temperature(measure) else None
