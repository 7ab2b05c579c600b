"""Measures of predictions: errors, coverage of intervals, order of layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import get_args

from scipy.stats import binomtest, kendalltau

from workflow_lib.memory import Fit
from workflow_lib.projection.kinds import Widths


@dataclass(frozen=True)
class Errors:
    """Relative errors of predictions, as shares of the measured values, not in percent."""

    rows: int
    mape: float
    maximum: float
    signed_median: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Errors:
        """From signed relative errors. Raises ValueError if there are none."""
        if not errors:
            raise ValueError("no errors to sum up")
        return cls(
            rows=len(errors),
            mape=fmean(map(abs, errors)),
            maximum=max(map(abs, errors)),
            signed_median=median(errors),
        )


@dataclass(frozen=True)
class Quantity:
    """A predicted value beside the measured one."""

    measured: float
    median: float
    #: standard deviation of the prediction's logarithm
    sd: float
    widths: Widths

    @property
    def error(self) -> float:
        """The signed error divided by the measured value."""
        return self.median / self.measured - 1

    @property
    def distance(self) -> float:
        """How many standard deviations the logarithm of the measured value is above the median."""
        return math.log(self.measured / self.median) / self.sd

    def interval(self, level: float) -> tuple[float, float]:
        """Lower and upper end."""
        return self.widths.interval(self.median, self.sd, level)

    def is_within(self, level: float) -> bool:
        """Whether the interval holds the measured value."""
        low, high = self.interval(level)
        return low <= self.measured <= high


@dataclass(frozen=True)
class Coverage:
    """The coverage and width of intervals of one level."""

    #: share of the intervals that hold the measured value
    covered: float
    #: mean of (upper − lower) / middle
    width: float
    #: 95 % interval of the share, as if no row were like another
    low: float
    high: float

    @classmethod
    def of(cls, quantities: Sequence[Quantity], level: float) -> Coverage:
        """Of the intervals of predictions that are beside measured values."""
        held = [each.is_within(level) for each in quantities]
        ends = [(*each.interval(level), each.median) for each in quantities]
        width = fmean((high - low) / middle for low, high, middle in ends)
        return cls(fmean(held), width, *clopper_pearson(sum(held), len(held)))


def clopper_pearson(held: int, rows: int, level: float = 0.95) -> tuple[float, float]:
    """The interval of a share of which ``held`` of ``rows`` were seen (Biometrika 26(4), 1934)."""
    found = binomtest(held, rows).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Kendall's τ-b of two orders (Biometrika 33(3), 1945): 1 if they agree, −1 if one is the
    reverse of the other; None if all values of one side are equal."""
    tau = float(kendalltau(predicted, measured).statistic)
    return None if math.isnan(tau) else tau


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """How much longer the layout takes that is predicted to be the fastest, as a share of the
    fastest layout's time."""
    chosen = min(range(len(predicted)), key=predicted.__getitem__)
    return measured[chosen] / min(measured) - 1


def ranking(
    groups: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> dict[str, float | None] | None:
    """How well layouts are ordered, from the predicted and measured times of groups of layouts
    among which one could choose: means over groups. None if there is no group; τ is None if it is
    not defined in any."""
    if not groups:
        return None
    orders = [tau for group in groups if (tau := kendall_tau(*group)) is not None]
    regrets = [regret(*group) for group in groups]
    return {
        "groups": len(groups),
        "kendall_tau": fmean(orders) if orders else None,
        "regret": fmean(regrets),
        "largest_regret": max(regrets),
    }


def confusion(verdicts: Sequence[tuple[Fit, bool]]) -> dict[str, int]:
    """Counts of verdicts on memory, from pairs: whether a run was predicted to fit, and whether it
    ran."""
    return {
        f"{fit}_{end}": verdicts.count((fit, ran))
        for fit in get_args(Fit)
        for end, ran in (("ran", True), ("out_of_memory", False))
    }
