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

from typing import NamedTuple

#: an ``energy_error_share`` that is not larger is no finding
LEAST_ERROR_SHARE = 0.006
#: so many times what counter and samples differ by, an energy may be off in step with the sensor:
#: 14 of 16 starts of loads in step were no further from the mean of their kind, and 6 no further
#: than the difference (docs/results/in-step.md). Both look at the same moments, and err together.
IN_STEP = 3
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


def in_step_share(energy_j: float, integral_j: float, explained: float = 0.0) -> float:
    """By how much an energy may be off, because its load is in step with the sensor: a share of it.

    ``explained`` is how much of the difference between the counter's energy and the integral of
    power the times of readings may make.
    """
    difference = abs(integral_j / energy_j - 1)
    return 0.0 if difference <= explained else IN_STEP * difference


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
