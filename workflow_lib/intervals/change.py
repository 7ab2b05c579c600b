"""By how much a quantity changes over a run's steps, and how far that can be told from its noise.

Two changes are estimated by least squares, in the unit of the values::

    trend   a straight line's last value less its first:   /  or  \\
    bend    a parabola's middle less its ends:             an arch, up or down

Noise of neighbouring steps is alike: its autocorrelation is taken to fall off as φ, φ², … (AR(1)),
with φ up to 0.6. So the margins are those of least squares under such noise, and not of independent
values, which would make a third of all quiet runs drift at φ = 0.5. With R(φ) the matrix of
correlations, M what leaves the residuals of a straight line, and L what takes each residual's
neighbours:

- φ is where tr(M·L·M·R) / tr(M·R), what is expected of the residuals' autocorrelation, is what was
  found; so the bias of few values is corrected. One standard error, 1/√n (M. S. Bartlett, Journal
  of the Royal Statistical Society Supplement 8(1), 1946), is added, because one that is taken too
  small makes drifts of noise.
- The variance is estimated twice, by the residuals' squares and by the squares of the differences
  from one step to the next, and the smaller estimate counts. Both have the same expectation where
  there is nothing but noise and a straight line. A curve, or a jump, enlarges the first much more
  (J. von Neumann and others, Annals of Mathematical Statistics 12(2), 1941).
- Degrees of freedom are Satterthwaite's: tr(Q·R)² / tr(Q·R·Q·R) for a sum of squares e′Q e.

Margins are Student's at 99.5 %. ``docs/explanation/measurement.md`` has how often they mislead, and
how small a drift they show; ``tests/analysis/test_steady_state.py`` checks that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workflow_lib.intervals import students_t

Floats = npt.NDArray[np.float64]

#: below which noise and drift are not told apart by any margin
FEWEST_VALUES = 10
_SHARE = 0.9975
_MOST_AUTOCORRELATION = 0.6
_HALVINGS = 30


@dataclass(frozen=True)
class Estimate:
    """A change, and how far the true one may lie from it on either side."""

    change: float
    margin: float

    @property
    def is_told(self) -> bool:
        """Whether the interval excludes that there is no change."""
        return abs(self.change) > self.margin

    def is_within(self, tolerance: float) -> bool:
        """Whether the whole interval lies within a tolerance about no change."""
        return abs(self.change) + self.margin <= tolerance


@dataclass(frozen=True)
class Change:
    """What a series does from its first value to its last."""

    trend: Estimate
    bend: Estimate

    @property
    def is_told(self) -> bool:
        """Whether it changes for sure, in either way."""
        return self.trend.is_told or self.bend.is_told

    def is_within(self, tolerance: float) -> bool:
        """Whether it surely changes by no more than the tolerance, in either way."""
        return self.trend.is_within(tolerance) and self.bend.is_within(tolerance)


def change(values: Sequence[float]) -> Change:
    """The change over equally spaced values. Raises ValueError for fewer than FEWEST_VALUES."""
    if len(values) < FEWEST_VALUES:
        raise ValueError(f"{len(values)} values, expected {FEWEST_VALUES} or more")
    series = np.array(values, dtype=np.float64)
    of = _of_length(series.size)
    residuals = of.residuals @ series
    squares = float(residuals @ residuals)
    differences = float(np.square(np.diff(residuals)).sum())
    autocorrelation = _autocorrelation(of, residuals, squares)
    powers: Floats = np.power(autocorrelation, np.arange(series.size), dtype=np.float64)
    correlations: Floats = powers[of.apart]
    # Both scale the variance of an estimate; the smaller estimate of it counts.
    spread = min(
        _standard_error(squares, of.residuals, correlations),
        _standard_error(differences, of.roughness, correlations),
    )
    estimates = []
    for shape, lags in zip(of.shapes, of.shape_lags, strict=True):
        length = float(shape @ shape)
        found = float(shape @ series) / length
        estimates.append(Estimate(found, spread * math.sqrt(float(lags @ powers)) / length))
    return Change(*estimates)


def _standard_error(squares: float, form: Floats, correlations: Floats) -> float:
    """What multiplies √(shape′ R shape) for a margin: of a sum of squares and its matrix."""
    expected = form @ correlations
    trace = float(np.trace(expected))
    degrees = trace * trace / float((expected * expected.T).sum())
    return students_t.quantile(max(degrees, 1.0), _SHARE) * math.sqrt(squares / trace)


def _autocorrelation(of: _OfLength, residuals: Floats, squares: float) -> float:
    """The noise's autocorrelation, one standard error above what the residuals show."""
    if squares <= 0:
        return 0.0
    shown = float(residuals[1:] @ residuals[:-1]) / squares
    low, high = -_MOST_AUTOCORRELATION, _MOST_AUTOCORRELATION
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        powers = middle ** np.arange(residuals.size)
        expected = float(of.neighbour_lags @ powers) / float(of.residual_lags @ powers)
        low, high = (middle, high) if expected < shown else (low, middle)
    with_error = (low + high) / 2 + 1 / math.sqrt(residuals.size)
    return min(max(with_error, 0.0), _MOST_AUTOCORRELATION)


@dataclass(frozen=True)
class _OfLength:
    """What depends on the number of values n alone: arrays of (n), (n, n), and sums over all places
    that are equally far apart, of (n), which times powers of φ are traces with R."""

    #: how far apart two places are
    apart: npt.NDArray[np.int64]
    #: the line's and the parabola's form, each changing by 1, and without a mean
    shapes: tuple[Floats, Floats]
    shape_lags: tuple[Floats, Floats]
    #: M, which leaves the residuals of a straight line
    residuals: Floats
    residual_lags: Floats
    #: M L M, the product of residuals and their neighbours
    neighbour_lags: Floats
    #: M D′D M, the squares of differences of residuals
    roughness: Floats


@functools.lru_cache(maxsize=8)
def _of_length(count: int) -> _OfLength:
    places = np.arange(count)
    apart = np.abs(places[:, None] - places[None, :])
    line = np.linspace(-0.5, 0.5, count)
    arch = -4 * line**2
    arch -= arch.mean()
    design = np.stack([np.ones(count), line], axis=1)
    residuals = np.eye(count) - design @ np.linalg.pinv(design)
    neighbours = (apart == 1) / 2
    steps = np.diff(np.eye(count), axis=0) @ residuals

    def lags(form: Floats) -> Floats:
        sums = np.bincount(apart.ravel(), form.ravel(), minlength=count)
        return sums.astype(np.float64)

    return _OfLength(
        apart,
        (line, arch),
        (lags(np.outer(line, line)), lags(np.outer(arch, arch))),
        residuals,
        lags(residuals),
        lags(residuals @ neighbours @ residuals),
        steps.T @ steps,
    )
