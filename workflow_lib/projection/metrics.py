"""How good predictions are: errors, coverage of intervals, order of layouts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

#: shares of predictions that intervals should hold
LEVELS = (0.5, 0.9)


@dataclass(frozen=True)
class Errors:
    """Of predictions over what was measured; shares, not percent."""

    rows: int
    mape: float
    maximum: float
    signed_median: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Errors:
        """From signed relative errors. Raises ValueError where there are none."""
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
    """Of intervals of one level."""

    #: share of them that hold what was measured
    covered: float
    #: mean of (upper − lower) / middle
    width: float

    @classmethod
    def of(
        cls, intervals: Sequence[tuple[float, float, float]], measured: Sequence[float]
    ) -> Coverage:
        """From lower ends, middles and upper ends."""
        held = [low <= x <= high for (low, _, high), x in zip(intervals, measured, strict=True)]
        return cls(fmean(held), fmean((high - low) / middle for low, middle, high in intervals))


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Kendall's τ-b of two orders (Biometrika 33(3), 1945): 1 where they agree, −1 where one is the
    other's reverse; None where all of one side are equal.
    """
    agree = ties_predicted = ties_measured = pairs = 0
    for i, j in itertools.combinations(range(len(predicted)), 2):
        a, b = predicted[i] - predicted[j], measured[i] - measured[j]
        pairs += 1
        ties_predicted += a == 0
        ties_measured += b == 0
        agree += (a * b > 0) - (a * b < 0)
    scale = (pairs - ties_predicted) * (pairs - ties_measured)
    return agree / scale**0.5 if scale else None


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """How much longer than the best the one takes that is predicted to be the fastest."""
    chosen = min(range(len(predicted)), key=predicted.__getitem__)
    return measured[chosen] / min(measured) - 1


@dataclass(frozen=True)
class Ranking:
    """Of groups of layouts among which one could choose."""

    groups: int
    #: means over groups; None where none has two times
    kendall_tau: float | None
    regret: float
    largest_regret: float

    @classmethod
    def of(cls, groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Ranking | None:
        """From each group's predicted and measured times; None where there is no group."""
        if not groups:
            return None
        orders = [tau for each in groups if (tau := kendall_tau(*each)) is not None]
        regrets = [regret(*each) for each in groups]
        return cls(len(groups), fmean(orders) if orders else None, fmean(regrets), max(regrets))


@dataclass(frozen=True)
class Confusion:
    """Verdicts on memory: what was predicted, and what happened."""

    fits_ran: int
    fits_out_of_memory: int
    too_much_ran: int
    too_much_out_of_memory: int

    @classmethod
    def of(cls, verdicts: Sequence[tuple[bool, bool]]) -> Confusion:
        """From pairs: predicted to fit, and ran."""
        return cls(
            fits_ran=verdicts.count((True, True)),
            fits_out_of_memory=verdicts.count((True, False)),
            too_much_ran=verdicts.count((False, True)),
            too_much_out_of_memory=verdicts.count((False, False)),
        )
