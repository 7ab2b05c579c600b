"""Predicts times of rows from other rows, with intervals whose widths inner splits determine.

A fit knows how uncertain its predictions are, but not whether its own form is wrong. So the rows
that a fold fits on are split once more by the same rule. The errors of those inner predictions set
the width of intervals (conformal prediction: Vovk, Gammerman and Shafer, Algorithmic Learning in a
Random World, 2005, chapter 2, with the fit's standard deviation as the scale). Rows that are
predicted play no part in this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from workflow_lib.projection import mixed, stepping
from workflow_lib.projection.layouts import Layout, published_layout
from workflow_lib.projection.metrics import LEVELS
from workflow_lib.projection.published import PublishedRun
from workflow_lib.projection.reading import Unusable
from workflow_lib.projection.splits import Fold, Split

#: The weight of the fit's own intervals beside inner splits, in rows.
_OWN_ROWS = 20
#: kinds of splits with too many folds to split each once more
_NOT_INNER = ("layout",)
#: the least share of the peak that a run is believed to have reached
_LEAST_SHARE = 0.01
#: an inner weak-scaling split uses the outer split's limits on GPUs divided by this
_INNER_WEAK = 4


@dataclass(frozen=True)
class Widths:
    """How many of the fit's standard deviations an interval extends in each direction."""

    factors: Mapping[float, float]
    #: number of rows of inner splits from which the factors come
    rows: int

    @classmethod
    def of(cls, distances: Sequence[float]) -> Widths:
        """From the distances of predictions from measured values, in standard deviations, without
        sign."""
        own = [NormalDist().inv_cdf(0.5 + (n + 0.5) / _OWN_ROWS / 2) for n in range(_OWN_ROWS)]
        known = sorted([*distances, *own])
        return cls(
            {
                # The smallest distance that covers ``level`` of one row more than there are.
                level: known[min(math.ceil(level * (len(known) + 1)), len(known)) - 1]
                for level in LEVELS
            },
            len(distances),
        )


@dataclass(frozen=True)
class Forecast:
    """The prediction for a run."""

    run: PublishedRun
    layout: Layout
    median_s: float
    #: standard deviation of the time's logarithm
    sd: float
    widths: Widths
    prediction: mixed.Prediction

    @property
    def error(self) -> float:
        """The signed error divided by the measured time."""
        assert self.run.step_time_s is not None
        return self.median_s / self.run.step_time_s - 1

    @property
    def distance(self) -> float:
        """How many standard deviations the logarithm is off, without sign."""
        assert self.run.step_time_s is not None
        return abs(math.log(self.run.step_time_s / self.median_s)) / self.sd

    def interval_s(self, level: float) -> tuple[float, float]:
        """The lower and upper end of the interval with coverage ``level``, in s."""
        reach = math.exp(self.widths.factors[level] * self.sd)
        return self.median_s / reach, self.median_s * reach


def usable(
    runs: Sequence[PublishedRun], chunks: Mapping[tuple[str, int | None], int]
) -> tuple[dict[int, Layout], list[Unusable]]:
    """The layouts by the runs' lines, and the runs without a layout with the reason."""
    layouts, unusable = {}, []
    for run in runs:
        layout = published_layout(run, chunks)
        reason = layout if isinstance(layout, str) else _impossible(run, layout)
        if isinstance(layout, str) or reason:
            unusable.append(Unusable(run.line, str(reason)))
        else:
            layouts[run.line] = layout
    return layouts, unusable


def _impossible(run: PublishedRun, layout: Layout) -> str | None:
    """Why a run's time cannot be right, if its GPUs would have done more or far less work."""
    if run.step_time_s is None or _LEAST_SHARE <= layout.ideal_s / run.step_time_s <= 1:
        return None
    share = layout.ideal_s / run.step_time_s
    return (
        f"its step of {run.step_time_s:.4g} s would be {share:.3g} of its GPUs' peak, expected "
        f"{_LEAST_SHARE} to 1: is its time in seconds, and are its batch and model right?"
    )


def forecast(
    split: Split, fold: Fold, chunks: Mapping[tuple[str, int | None], int]
) -> tuple[list[Forecast], list[Unusable]]:
    """The fold's predictions, and the rows that cannot be predicted with the reason. If a row does
    not state its chunks, those of ``chunks`` are taken."""
    return _forecast(fold, Widths.of(_inner_distances(split, fold, chunks)), chunks)


def _forecast(
    fold: Fold, widths: Widths, chunks: Mapping[tuple[str, int | None], int]
) -> tuple[list[Forecast], list[Unusable]]:
    fitted, _ = usable(fold.fitted, chunks)
    predicted, unusable = usable(fold.predicted, chunks)
    fit = mixed.fit(
        stepping.PROBLEM,
        [stepping.published_row(r, fitted[r.line]) for r in fold.fitted if r.line in fitted],
    )
    runs = [run for run in fold.predicted if run.line in predicted]
    found = fit.predict([stepping.unknown_row(run, predicted[run.line]) for run in runs])
    return [
        Forecast(run, predicted[run.line], each.median_s, each.sd, widths, each)
        for run, each in zip(runs, found, strict=True)
    ], unusable


def _inner_distances(
    split: Split, fold: Fold, chunks: Mapping[tuple[str, int | None], int]
) -> list[float]:
    if split.kind in _NOT_INNER:
        return []
    distances = []
    for inner in inner_split(split).folds(fold.fitted):
        forecasts, _ = _forecast(inner, Widths.of([]), chunks)
        distances += [each.distance for each in forecasts]
    return distances


def inner_split(split: Split) -> Split:
    """The split that applies the same rule to the rows that a fold fits on."""
    rules = dict(split.rules)
    if split.kind == "weak":
        for name in ("fit_gpus_at_most", "test_gpus_at_least"):
            rules[name] //= _INNER_WEAK
    return Split(split.name, split.title, split.kind, rules)
