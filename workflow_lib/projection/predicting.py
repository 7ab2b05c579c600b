"""Times that were never seen, from those that were, with intervals that inner splits set.

A fit says how uncertain its predictions are, but knows of no mistake of its own form. So the rows
that a fold fits on are split once more by the same rule, and how far out those predictions lie sets
how wide intervals are (conformal prediction: Vovk, Gammerman and Shafer, Algorithmic Learning in a
Random World, 2005, chapter 2, with the fit's standard deviation as the scale). Nothing that is
predicted has a part in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from workflow_lib.projection import mixed, stepping
from workflow_lib.projection.layouts import Layout, published_layout
from workflow_lib.projection.metrics import LEVELS
from workflow_lib.projection.published import PublishedRun, Unusable
from workflow_lib.projection.splits import Fold, Split

#: The fit's own intervals count for so many rows beside those of inner splits.
_OWN_ROWS = 20
#: kinds with too many folds to split each once more
_NOT_INNER = ("layout",)
#: an inner weak-scaling split ends where the outer begins: a fourth of its numbers of GPUs
_INNER_WEAK = 4


@dataclass(frozen=True)
class Widths:
    """By how many of the fit's standard deviations an interval reaches to each side."""

    factors: Mapping[float, float]
    #: rows of inner splits that they come from
    rows: int

    @classmethod
    def of(cls, distances: Sequence[float]) -> Widths:
        """From how many standard deviations predictions were off, without sign."""
        own = [NormalDist().inv_cdf(0.5 + (n + 0.5) / _OWN_ROWS / 2) for n in range(_OWN_ROWS)]
        known = sorted([*distances, *own])
        return cls(
            {
                # The smallest that holds its share of one row more than there are.
                level: known[min(math.ceil(level * (len(known) + 1)), len(known)) - 1]
                for level in LEVELS
            },
            len(distances),
        )


@dataclass(frozen=True)
class Forecast:
    """What is predicted of a run."""

    run: PublishedRun
    layout: Layout
    median_s: float
    #: of the time's logarithm
    sd: float
    widths: Widths
    prediction: mixed.Prediction

    @property
    def error(self) -> float:
        """Signed, over what was measured."""
        assert self.run.step_time_s is not None
        return self.median_s / self.run.step_time_s - 1

    @property
    def distance(self) -> float:
        """By how many standard deviations the logarithm is off, without sign."""
        assert self.run.step_time_s is not None
        return abs(math.log(self.run.step_time_s / self.median_s)) / self.sd

    def interval_s(self, level: float) -> tuple[float, float]:
        """The least and the most that the time should be."""
        reach = math.exp(self.widths.factors[level] * self.sd)
        return self.median_s / reach, self.median_s * reach


def usable(
    runs: Sequence[PublishedRun], chunks: Mapping[tuple[str, int | None], int]
) -> tuple[dict[int, Layout], list[Unusable]]:
    """Layouts by the runs' lines, and why others have none."""
    layouts, unusable = {}, []
    for run in runs:
        layout = published_layout(run, chunks)
        if isinstance(layout, str):
            unusable.append(Unusable(run.line, layout))
        else:
            layouts[run.line] = layout
    return layouts, unusable


def forecast(
    split: Split, fold: Fold, chunks: Mapping[tuple[str, int | None], int]
) -> tuple[list[Forecast], list[Unusable]]:
    """The fold's predictions, and the rows that cannot be predicted, and why. Chunks that a row
    does not state are those of ``chunks``.
    """
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
    """The same rule for the rows that a fold fits on."""
    rules = dict(split.rules)
    if split.kind == "weak":
        for name in ("fit_gpus_at_most", "test_gpus_at_least"):
            rules[name] //= _INNER_WEAK
    return Split(split.name, split.title, split.kind, rules)
