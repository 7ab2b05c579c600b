"""Predicts times of rows from other rows, with the intervals of their kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workflow_lib.projection import kinds, mixed, stepping
from workflow_lib.projection.kinds import Widths
from workflow_lib.projection.layouts import Layout, published_layout
from workflow_lib.projection.published import PublishedRun
from workflow_lib.projection.reading import Unusable
from workflow_lib.projection.splits import Fold, untuned

#: the least share of the peak that a run is believed to have reached
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Forecast:
    """The prediction for a run."""

    run: PublishedRun
    layout: Layout
    median_s: float
    #: standard deviation of the time's logarithm
    sd: float
    #: of :data:`STEP_TIME_KINDS`
    kind: str
    prediction: mixed.Prediction

    @property
    def group(self) -> str:
        """The group of like rows, of those of its kind."""
        of = {"stack": self.run.stack, "release": self.run.source, "site": self.run.site}
        shape = self.run.shape
        return of.get(self.kind, f"{self.run.stack}: {shape.name if shape else self.run.model}")

    @property
    def widths(self) -> Widths:
        """The widths of its intervals, in which no row of its group has a part."""
        return kinds.widths(self.kind, without=self.group)

    @property
    def error(self) -> float:
        """The signed error divided by the measured time."""
        assert self.run.step_time_s is not None
        return self.median_s / self.run.step_time_s - 1

    @property
    def distance(self) -> float:
        """How many standard deviations the logarithm of the measured time is above the median."""
        assert self.run.step_time_s is not None
        return math.log(self.run.step_time_s / self.median_s) / self.sd

    def interval_s(self, level: float) -> tuple[float, float]:
        """The lower and upper end of the interval with coverage ``level``, in s."""
        return self.widths.interval(self.median_s, self.sd, level)


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
    fold: Fold, chunks: Mapping[tuple[str, int | None], int]
) -> tuple[list[Forecast], list[Unusable]]:
    """The fold's predictions, and the rows that cannot be predicted with the reason. If a row does
    not state its chunks, those of ``chunks`` are taken."""
    fitted, _ = usable(fold.fitted, chunks)
    predicted, unusable = usable(fold.predicted, chunks)
    fit = mixed.fit(
        stepping.PROBLEM,
        [stepping.published_row(r, fitted[r.line]) for r in fold.fitted if r.line in fitted],
    )
    runs = [run for run in fold.predicted if run.line in predicted]
    found = fit.predict([stepping.unknown_row(run, predicted[run.line]) for run in runs])
    sources = untuned([*fold.fitted, *fold.predicted])
    return [
        Forecast(
            run,
            predicted[run.line],
            each.median_s,
            each.sd,
            kinds.kind(each.unseen, run.source in sources, predicted[run.line].pp > 1),
            each,
        )
        for run, each in zip(runs, found, strict=True)
    ], unusable
