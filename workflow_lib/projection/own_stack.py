"""The fit for this workflow's own stack: its factor from its own runs, the rest also from others.

The rates of the parts, and how time grows with ranks, are fitted to the published rows of one stack
(NVIDIA's, BF16) and to this workflow's runs together. The stack's factor, and that of each layer
that ran, are fitted to its own runs only. Exchanges and the optimiser take the times that were
measured alone, where there are such times of the model of GPU (``timed_terms.py``). The validation
tests predictions of published stacks, which are a different claim.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from workflow_lib.projection import kinds, step_model
from workflow_lib.projection.hierarchical_fit import Fit, Prediction, Problem, Row, fit
from workflow_lib.projection.kinds import Group, Widths
from workflow_lib.projection.layouts import Layout
from workflow_lib.projection.own_runs import OwnRun, read_own
from workflow_lib.projection.part_times import PartTime, Rates, read_parts
from workflow_lib.records.reading import RecordError

_DATA = Path(str(resources.files("workflow_lib.projection") / "data"))
#: rows of published runs, and the fit to them and to the shipped runs
PUBLISHED_ROWS, SHIPPED_FIT = _DATA / "published_rows.json", _DATA / "own_fit.json"
#: files that a fit is made from
_SOURCES = ("*.csv", "*.jsonl", PUBLISHED_ROWS.name)
#: A fit is refused if a cell is further than both from what the others predict, as a share of its
#: time and in standard deviations of the prediction: that is not noise. A cell that is unlike all
#: others, as the only one of a single micro-batch, may be far off by an uncertain prediction.
MOST_OFF, MOST_SD_OFF = 0.3, 4.0


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

    fit: Fit
    runs: tuple[OwnRun, ...]
    #: the most GPUs of a fitted row: of this workflow, and of published rows
    largest_own: int
    largest_published: int
    #: models of GPU of which any row was fitted
    gpus: frozenset[str]
    #: of parts that were measured alone
    rates: Rates
    #: those of a fit that was kept; computed if None
    shipped_residuals: tuple[Residual, ...] | None = None

    @functools.cached_property
    def residuals(self) -> tuple[Residual, ...]:
        """The residual of each cell, predicted from published rows and all cells of other layouts.

        Several cells may have one layout, because a row does not have all axes. From another cell
        of its layout each would be predicted too well.
        """
        if self.shipped_residuals is not None:
            return self.shipped_residuals
        return _residuals(self.runs, self.rates)

    def check(self) -> None:
        """Refuse runs that do not agree. Raises RecordError with the cell that is furthest off."""
        far = (each for each in self.residuals if each.distance > MOST_SD_OFF)
        worst = max(far, key=lambda residual: abs(residual.error), default=None)
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
        for residual in self.residuals:
            # A cell that is predicted too short lies above.
            above = math.copysign(residual.distance, -residual.error)
            known.setdefault(repr(residual.run.layout), []).append(above)
        groups = [Group.of("own", *cells) for cells in known.items()]
        return kinds.enough(Widths.of("own", groups))

    def widths_of(self, layout: Layout, prediction: Prediction) -> Widths:
        """The widths of a layout's interval. Across nodes no layout of this workflow ran, and
        nobody tuned it: it may be as slow as any that was tried elsewhere."""
        across = layout.gpus > layout.machine.gpus_per_node
        if across or "stack" in prediction.unseen:
            return kinds.widths(kinds.kind(prediction.unseen, across, layout.pp > 1))
        return self.widths

    def predict(self, layouts: Sequence[Layout], platform: str) -> list[Prediction]:
        """Step times of layouts on a platform."""
        return self.fit.predict([self.row(layout, platform) for layout in layouts])

    def row(self, layout: Layout, platform: str) -> Row:
        """A layout on a platform as a row, to be predicted."""
        return step_model.own_row(layout, platform, rates=self.rates)


@dataclass(frozen=True)
class PublishedRows:
    """Rows of published runs, which give the rates of parts."""

    rows: tuple[Row, ...]
    #: the most GPUs of one
    largest: int
    #: their models of GPU
    gpus: frozenset[str]


@functools.cache
def published_rows() -> PublishedRows:
    """The rows that ``data/published_rows.json`` holds, which ``python -m research.projection
    ship`` writes. It numbers their groups: whose they are bears on no prediction here."""
    content = json.loads(PUBLISHED_ROWS.read_text(encoding="utf-8"))
    rows = []
    for row in content["rows"]:
        groups = {kind: ("published", number) for kind, number in row.pop("groups").items()}
        rows.append(Row(**row, groups=groups))
    return PublishedRows(tuple(rows), content["largest"], frozenset(content["gpus"]))


def own_stack(
    runs: Sequence[OwnRun] | None = None, times: Sequence[PartTime] | None = None
) -> OwnStack:
    """Fit to runs and to times of parts alone; by default to those of the shipped evidence. Raises
    RecordError."""
    rates = Rates(tuple(read_parts() if times is None else times))
    return _fitted(tuple(read_own() if runs is None else runs), rates)


@functools.cache
def _fitted(runs: tuple[OwnRun, ...], rates: Rates) -> OwnStack:
    published = published_rows()
    return OwnStack(
        fit=fit(problem_of(rates), [*published.rows, *rows_of(runs, rates)]),
        runs=runs,
        largest_own=max((run.layout.gpus for run in runs), default=0),
        largest_published=published.largest,
        gpus=published.gpus | {run.layout.machine.gpu for run in runs},
        rates=rates,
    )


def _residuals(runs: tuple[OwnRun, ...], rates: Rates) -> tuple[Residual, ...]:
    published = published_rows().rows
    rows = rows_of(runs, rates)
    layouts = [run.layout for run in runs]
    residuals = []
    for run, layout in zip(runs, layouts, strict=True):
        others = [row for row, other in zip(rows, layouts, strict=True) if other != layout]
        others = [*published, *others]
        (prediction,) = fit(problem_of(rates), others).predict([_row(run, rates)])
        distance = abs(prediction.log_s - math.log(run.step_time_s)) / prediction.sd
        residuals.append(Residual(run, prediction.median_s / run.step_time_s - 1, distance))
    return tuple(residuals)


def problem_of(rates: Rates) -> Problem:
    """What is fitted, which depends on whether parts were measured alone."""
    return step_model.PROBLEM_WITH_MEASURED if rates.lines else step_model.PROBLEM


def rows_of(runs: Sequence[OwnRun], rates: Rates) -> list[Row]:
    """Runs as rows with their times, to be fitted."""
    return [replace(_row(run, rates), time_s=run.step_time_s) for run in runs]


def _row(run: OwnRun, rates: Rates) -> Row:
    return step_model.own_row(run.layout, run.platform, run.platform, rates)


def digest() -> str:
    """The SHA-256 of the files that a fit is made from."""
    checksum = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in _DATA.glob(pattern)):
        content = path.read_bytes()
        checksum.update(f"{path.name} {len(content)}\n".encode() + content)
    return checksum.hexdigest()


@functools.cache
def shipped_stack() -> OwnStack:
    """The fit to the shipped runs: the kept one, or a new one if the files that it was made from
    have changed since. Raises RecordError."""
    kept = json.loads(SHIPPED_FIT.read_text(encoding="utf-8"))
    if kept["fitted_to_sha256"] != digest():
        return own_stack()
    runs, rates = tuple(read_own()), Rates(tuple(read_parts()))
    size = len(kept["values"])
    covariance = np.zeros((size, size))
    for number, row in enumerate(kept["covariance"]):
        covariance[number, : number + 1] = covariance[: number + 1, number] = row
    fit = Fit.of_parameters(
        problem_of(rates),
        names_of(runs, rates),
        np.array(kept["values"]),
        covariance,
        (kept["effect_sd"], kept["noise_sd"]),
    )
    of_runs = zip(runs, kept["residuals"], strict=True)
    residuals = tuple(Residual(run, error, distance) for run, (error, distance) in of_runs)
    return OwnStack(
        fit=fit,
        runs=runs,
        largest_own=max(run.layout.gpus for run in runs),
        largest_published=kept["largest_published"],
        gpus=frozenset(kept["gpus"]),
        rates=rates,
        shipped_residuals=residuals,
    )


def names_of(runs: tuple[OwnRun, ...], rates: Rates) -> list[tuple[str, Hashable]]:
    """The parameters that rows of this workflow can have, in the order of the file."""
    problem = problem_of(rates)
    names: list[tuple[str, Hashable]] = [("rate", part) for part in problem.rates]
    names += [("growth", kind) for kind in problem.growth]
    groups = (group for row in rows_of(runs, rates) for group in row.groups.items())
    return list(dict.fromkeys([*names, *groups]))
