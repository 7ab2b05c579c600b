"""Measures of predictions: errors, coverage of intervals, order of layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import get_args

from scipy.stats import beta, kendalltau

from workflow_lib.memory import Fit


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
    def of(
        cls, intervals: Sequence[tuple[float, float, float]], measured: Sequence[float]
    ) -> Coverage:
        """From lower ends, middles and upper ends."""
        held = [low <= x <= high for (low, _, high), x in zip(intervals, measured, strict=True)]
        width = fmean((high - low) / middle for low, middle, high in intervals)
        return cls(fmean(held), width, *clopper_pearson(sum(held), len(held)))


def clopper_pearson(held: int, rows: int, level: float = 0.95) -> tuple[float, float]:
    """The interval of a share of which ``held`` of ``rows`` were seen (Biometrika 26(4), 1934)."""
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, held, rows - held + 1)) if held else 0.0
    high = float(beta.ppf(1 - tail, held + 1, rows - held)) if held < rows else 1.0
    return low, high


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


@dataclass(frozen=True)
class Ranking:
    """How well layouts are ordered, over groups of layouts among which one could choose."""

    groups: int
    #: means over groups; τ is None if it is not defined in any group
    kendall_tau: float | None
    regret: float
    largest_regret: float

    @classmethod
    def of(cls, groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Ranking | None:
        """From each group's predicted and measured times; None if there is no group."""
        if not groups:
            return None
        orders = [tau for group in groups if (tau := kendall_tau(*group)) is not None]
        regrets = [regret(*group) for group in groups]
        return cls(len(groups), fmean(orders) if orders else None, fmean(regrets), max(regrets))


@dataclass(frozen=True)
class Confusion:
    """Counts of verdicts on memory, by whether a run was predicted to fit and what happened."""

    yes_ran: int
    yes_out_of_memory: int
    perhaps_ran: int
    perhaps_out_of_memory: int
    no_ran: int
    no_out_of_memory: int

    @classmethod
    def of(cls, verdicts: Sequence[tuple[Fit, bool]]) -> Confusion:
        """From pairs: whether a run was predicted to fit, and whether it ran."""
        return cls(
            **{
                f"{fit}_{end}": verdicts.count((fit, ran))
                for fit in get_args(Fit)
                for end, ran in (("ran", True), ("out_of_memory", False))
            }
        )
