"""How far a GPU's own sensor of power may be off, where no meter was beside it.

A sensor reads (1 + gain) · power + offset. Both belong to the GPU, and repeats do not show them.
Z. Yang, K. Adamek and W. Armour set 19 NVIDIA GPUs of 15 models beside an external meter and fitted
this line: gains of −9.50 to +6.36 % and offsets of −12.35 to +11.85 W (arXiv 2312.02741, the figure
of the accuracy in steady state; its numbers are in ``plotting/figure_plotting.py`` of
github.com/JimZeyuYang/GPU_Power_Benchmark, commit 4b5c944). Five RTX 3090 differ by 7.2 % of gain
among themselves, so a gain is no property of a model. Their A100 has −4.58 % and −1.2 W. No Hopper
and no AMD GPU is among the 19. That none of these is worse than the worst of the 19 is assumed.
"""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from itertools import groupby
from math import tau
from statistics import fmean
from typing import NamedTuple

#: an ``energy_error_share`` that is not larger is no finding
LEAST_ERROR_SHARE = 0.002
#: H100 and H200 look at power so often, in s
LOOK_S = 0.02
#: of power's swing, so much is taken for a part of its mean where a load of one look a step is in
#: step: set by 16 starts on one H200, enough for 29 of 31 on two others (docs/results/in-step.md)
_TAKEN_FOR_MEAN = 0.2
#: in so many s the looks, 20.000 to 20.005 ms apart by their stamps, drift by a tenth of one
_BLOCK_S = 10.0
GAIN_SHARE = 0.10
OFFSET_W = 12.5
IN_WORDS = (
    f"a gain of ±{100 * GAIN_SHARE:g} % and an offset of ±{OFFSET_W:g} W, the same at all powers"
)


class SensorError(NamedTuple):
    """What is known of the gain and the offset of one GPU's sensor."""

    gain_low: float = -GAIN_SHARE
    gain_high: float = GAIN_SHARE
    #: the offset's largest size, in W
    offset_w: float = OFFSET_W


#: of a GPU that no meter was beside
PUBLISHED = SensorError()


def in_step_share(
    samples: Sequence[tuple[float, float]],
    step_s: float,
    step_ends_s: Sequence[float] | None = None,
) -> float:
    """By how much an energy may be off, because steps are in step with the sensor: a share of it.

    ``samples`` are the driver's, times in s and W, over the steps, and ``step_s`` is their mean
    length. It is 0 where samples are not a look of 20 ms apart, as such sensors were not measured,
    and where steps have no length or power is 0.

    The sensor takes power's part at its looks' own frequency for a part of the mean. That part is
    the n-th harmonic of a load with n looks a step: at most 2/(π·n) of the swing where power has
    two levels, and less by what a look averages. It counts as far as steps end at one phase of the
    looks: by the length of the mean of the phases, as unit vectors. Without ``step_ends_s``, all
    may.
    """
    if len(samples) < 2 or step_s <= 0:
        return 0.0
    apart_s = (samples[-1][0] - samples[0][0]) / (len(samples) - 1)
    if not 0.75 * LOOK_S < apart_s < 1.5 * LOOK_S:
        return 0.0
    together = 1.0 if step_ends_s is None else _together(step_ends_s)
    watts = sorted(watt for _, watt in samples)
    swing_w, mean_w = watts[-1 - len(watts) // 20] - watts[len(watts) // 20], fmean(watts)
    return _TAKEN_FOR_MEAN * swing_w / mean_w * LOOK_S / step_s * together if mean_w > 0 else 0.0


def _together(times_s: Sequence[float]) -> float:
    """How far times share a phase of the sensor's looks: 1 if all do."""
    since = [time - times_s[0] for time in times_s]
    blocks = groupby(since, lambda time: time // _BLOCK_S)
    of_blocks = (sum(cmath.exp(1j * tau * time / LOOK_S) for time in block) for _, block in blocks)
    return sum(map(abs, of_blocks)) / len(since)


def true_ends(reading: float, offset: float) -> tuple[float, float]:
    """The least and the most that is true where sensors whose offsets are ``offset`` together, in
    the reading's unit, say ``reading``.
    """
    least = (reading - offset) / (1 + GAIN_SHARE)
    return max(0.0, least), (reading + offset) / (1 - GAIN_SHARE)


def largest_share(power_w: float, sensors: int) -> float | None:
    """How far a reading of so many sensors together may be from the truth, as a share of the truth;
    None if offsets alone could make the reading.

    Of a reading r the smallest true power is (r − offsets)/(1 + gain), so the share is largest
    there.
    """
    true_w, _ = true_ends(power_w, sensors * OFFSET_W)
    return power_w / true_w - 1 if true_w > 0 else None
