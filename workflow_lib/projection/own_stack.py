"""The fit for this workflow's own stack: its factor from its own runs, the rest also from others.

The rates of the parts, and how time grows with ranks, are fitted to the published rows of one stack
(NVIDIA's, BF16) and to this workflow's runs together. The stack's factor, and that of each layer
that ran, are fitted to its own runs only. Exchanges and the optimiser take the times that were
measured alone, where there are such times of the model of GPU (``measured.py``). The validation
tests predictions of published stacks, which are a different claim.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workflow_lib.projection import kinds, mixed, stepping
from workflow_lib.projection.kinds import Group, Widths
from workflow_lib.projection.layouts import Layout, assumed_chunks
from workflow_lib.projection.own import OwnRun, read_own
from workflow_lib.projection.part_times import PartTime, read_parts
from workflow_lib.projection.predicting import usable
from workflow_lib.projection.rates import Rates
from workflow_lib.projection.reading import PUBLISHED, read_published
from workflow_lib.projection.splits import read_splits
from workflow_lib.records import RecordError

#: A fit is refused if a cell is further than this from what the others predict: that is not noise.
MOST_OFF = 0.3
#: the split whose rows give the rates of parts
_RATES_OF = "model"


@dataclass(frozen=True)
class Residual:
    """The error of a cell that is predicted from all cells of other layouts."""

    run: OwnRun
    #: signed error divided by the measured time
    error: float
    #: distance in standard deviations, without sign
    distance: float


@dataclass(frozen=True)
class OwnStack:
    """A fit, and the runs that it is fitted to."""

    fit: mixed.Fit
    runs: tuple[OwnRun, ...]
    #: the most GPUs of a fitted row: of this workflow, and of published rows
    largest_own: int
    largest_published: int
    #: models of GPU of which any row was fitted
    gpus: frozenset[str]
    #: of parts that were measured alone
    rates: Rates
    #: those of a fit that was kept; computed if None
    known_residuals: tuple[Residual, ...] | None = None

    @functools.cached_property
    def residuals(self) -> tuple[Residual, ...]:
        """The residual of each cell, predicted from published rows and all cells of other layouts.

        Several cells may have one layout, because a row does not have all axes. From another cell
        of its layout each would be predicted too well.
        """
        if self.known_residuals is not None:
            return self.known_residuals
        return _residuals(self.runs, self.rates)

    def check(self) -> None:
        """Refuse runs that do not agree. Raises RecordError with the cell that is furthest off."""
        worst = max(self.residuals, key=lambda each: abs(each.error), default=None)
        if worst is not None and abs(worst.error) > MOST_OFF:
            raise RecordError(
                f"{worst.run.cell}: took {worst.run.step_time_s:.3g} s, but the cells of other "
                f"layouts predict {1 + worst.error:.2f} times that, more than {MOST_OFF:.0%} off; "
                "look at its report, and leave it out if it was disturbed"
            )

    @functools.cached_property
    def widths(self) -> Widths:
        """The widths of intervals within a node, from the errors of cells that are predicted from
        those of other layouts. Cells of one layout are one group."""
        known: dict[str, list[float]] = {}
        for each in self.residuals:
            # A cell that is predicted too short lies above.
            above = math.copysign(each.distance, -each.error)
            known.setdefault(repr(each.run.layout), []).append(above)
        groups = [Group.of("own", *each) for each in known.items()]
        return kinds.enough(Widths.of("own", groups))

    def widths_of(self, layout: Layout, prediction: mixed.Prediction) -> Widths:
        """The widths of a layout's interval. Across nodes no layout of this workflow ran, and
        nobody tuned it: it may be as slow as any that was tried elsewhere."""
        across = layout.gpus > layout.machine.gpus_per_node
        if across or "stack" in prediction.unseen:
            return kinds.widths(kinds.kind(prediction.unseen, across, layout.pp > 1))
        return self.widths

    def predict(self, layouts: Sequence[Layout], platform: str) -> list[mixed.Prediction]:
        """Step times of layouts on a platform."""
        return self.fit.predict([self.row(layout, platform) for layout in layouts])

    def row(self, layout: Layout, platform: str) -> mixed.Row:
        """A layout on a platform as a row, to be predicted."""
        return stepping.own_row(layout, platform, rates=self.rates)


@functools.cache
def _published_rows() -> tuple[tuple[mixed.Row, ...], int, frozenset[str]]:
    """Rows, the most GPUs of one, and their models of GPU."""
    runs, _ = read_published(PUBLISHED)
    split = next(split for split in read_splits()[0] if split.name == _RATES_OF)
    chosen = split.chosen([run for run in runs if run.step_time_s is not None])
    layouts, _ = usable(chosen, assumed_chunks(runs))
    rows = [stepping.published_row(run, layouts[run.line]) for run in chosen if run.line in layouts]
    gpus = frozenset(layout.machine.gpu for layout in layouts.values())
    return tuple(rows), max(run.gpus for run in chosen), gpus


def own_stack(
    runs: Sequence[OwnRun] | None = None, times: Sequence[PartTime] | None = None
) -> OwnStack:
    """Fit to runs and to times of parts alone; by default to those of the shipped evidence. Raises
    RecordError."""
    rates = Rates(tuple(read_parts() if times is None else times))
    return _fitted(tuple(read_own() if runs is None else runs), rates)


@functools.cache
def _fitted(runs: tuple[OwnRun, ...], rates: Rates) -> OwnStack:
    published, largest, gpus = _published_rows()
    return OwnStack(
        fit=mixed.fit(problem_of(rates), [*published, *rows_of(runs, rates)]),
        runs=runs,
        largest_own=max((run.layout.gpus for run in runs), default=0),
        largest_published=largest,
        gpus=gpus | {run.layout.machine.gpu for run in runs},
        rates=rates,
    )


def _residuals(runs: tuple[OwnRun, ...], rates: Rates) -> tuple[Residual, ...]:
    published, _, _ = _published_rows()
    rows = rows_of(runs, rates)
    layouts = [run.layout for run in runs]
    found = []
    for run, layout in zip(runs, layouts, strict=True):
        others = [row for row, other in zip(rows, layouts, strict=True) if other != layout]
        others = [*published, *others]
        (each,) = mixed.fit(problem_of(rates), others).predict([_row(run, rates)])
        distance = abs(each.log_s - math.log(run.step_time_s)) / each.sd
        found.append(Residual(run, each.median_s / run.step_time_s - 1, distance))
    return tuple(found)


def problem_of(rates: Rates) -> mixed.Problem:
    """What is fitted, which depends on whether parts were measured alone."""
    return stepping.PROBLEM_WITH_MEASURED if rates.lines else stepping.PROBLEM


def rows_of(runs: Sequence[OwnRun], rates: Rates) -> list[mixed.Row]:
    """Runs as rows with their times, to be fitted."""
    return [_timed(run, rates) for run in runs]


def _timed(run: OwnRun, rates: Rates) -> mixed.Row:
    return replace(_row(run, rates), time_s=run.step_time_s)


def _row(run: OwnRun, rates: Rates) -> mixed.Row:
    return stepping.own_row(run.layout, run.platform, run.platform, rates)
