"""Estimates how much a quantity changes over a run's steps, with a margin for its noise.

Two changes are estimated by least squares, in the unit of the values::

    trend   a straight line's last value less its first:   /  or  \\
    bend    a parabola's middle less its ends:             an arch, up or down

The noise of neighbouring steps is correlated. Its autocorrelation is taken to fall off as φ, φ², …
(AR(1)), with φ up to 0.6, and margins are those of least squares under such noise. Margins for
independent values would make a third of all quiet runs drift at φ = 0.5. Let R(φ) be the matrix of
correlations, M the matrix that leaves the residuals of a straight line, and L the matrix that takes
each residual's neighbours:

- φ is chosen so that tr(M·L·M·R) / tr(M·R), the expected autocorrelation of the residuals, equals
  the one found. This corrects the bias of few values. One standard error, 1/√n (M. S. Bartlett,
  Journal of the Royal Statistical Society Supplement 8(1), 1946), is added, because too small a φ
  turns noise into drifts.
- The variance is estimated twice, by the residuals' squares and by the squares of their differences
  from one step to the next, and the smaller estimate counts. Both have the same expectation if
  there is only noise and a straight line. A curve or a jump enlarges the first much more (J. von
  Neumann and others, Annals of Mathematical Statistics 12(2), 1941).
- Degrees of freedom are Satterthwaite's: tr(Q·R)² / tr(Q·R·Q·R) for a sum of squares e′Q e.

Margins are Student's at 99.5 %. ``docs/explanation/measurement.md`` says how often they mislead,
and how small a drift they show; ``tests/analysis/test_steady_state.py`` checks that.
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

#: with fewer values, no margin can tell noise from drift
FEWEST_VALUES = 10
_SHARE = 0.9975
_MOST_AUTOCORRELATION = 0.6
_HALVINGS = 30


@dataclass(frozen=True)
class Estimate:
    """A change, and how far the true change may lie from it in either direction."""

    change: float
    margin: float

    def is_within(self, tolerance: float) -> bool:
        """Whether the whole interval lies within ±``tolerance``."""
        return abs(self.change) + self.margin <= tolerance

    def is_beyond(self, tolerance: float) -> bool:
        """Whether no part of the interval lies within ±``tolerance``."""
        return abs(self.change) - self.margin > tolerance


@dataclass(frozen=True)
class Change:
    """The change of a series from its first value to its last."""

    trend: Estimate
    bend: Estimate


def change(values: Sequence[float]) -> Change:
    """The change over equally spaced values, in their unit. Raises ValueError for fewer than
    FEWEST_VALUES."""
    if len(values) < FEWEST_VALUES:
        raise ValueError(f"{len(values)} values, expected {FEWEST_VALUES} or more")
    series = np.array(values, dtype=np.float64)
    of = _of_length(series.size)
    line = of.shapes[0]
    residuals = series - series.mean()
    residuals -= _sum(line * residuals) / of.squares[0] * line
    squares = _sum(residuals**2)
    powers = _powers(_autocorrelation(of, residuals, squares), series.size)
    of_residuals = _without_line(powers[of.apart], line)
    of_differences = np.diff(np.diff(of_residuals, axis=0), axis=1)
    # Both are factors of the margin; the smaller one counts.
    spread = min(
        _standard_error(squares, of_residuals),
        _standard_error(_sum(np.diff(residuals) ** 2), of_differences),
    )
    estimates = []
    for shape, length, lags in zip(of.shapes, of.squares, of.shape_lags, strict=True):
        estimate = _sum(shape * series) / length
        estimates.append(Estimate(estimate, spread * math.sqrt(_sum(lags * powers)) / length))
    return Change(*estimates)


def _sum(values: Floats) -> float:
    """Their sum, in the same order on every processor. A product of BLAS is not: it has other last
    digits on other processors, and with other numbers of threads."""
    return float(values.sum())


def _powers(base: float, count: int) -> Floats:
    """1, base, base², …: products one after another, which are the same on every processor."""
    return np.cumprod([1.0, *[base] * (count - 1)], dtype=np.float64)


def _without_line(form: Floats, line: Floats) -> Floats:
    """M·form·M of a symmetric form: without what the mean and the line take of it."""
    for shape in (np.ones(line.size), line):
        unit = shape / math.sqrt(_sum(shape**2))
        taken = (form * unit).sum(axis=1)
        taken -= _sum(taken * unit) / 2 * unit
        form = form - np.outer(taken, unit) - np.outer(unit, taken)
    return form


def _standard_error(squares: float, covariance: Floats) -> float:
    """The factor of √(shape′ R shape) in a margin, from a sum of squares and the covariance that
    noise of variance 1 gives to what was squared."""
    trace = _sum(np.diag(covariance))
    degrees = trace * trace / _sum(covariance**2)
    return students_t.quantile(max(degrees, 1.0), _SHARE) * math.sqrt(squares / trace)


def _autocorrelation(of: _OfLength, residuals: Floats, squares: float) -> float:
    """The noise's autocorrelation, one standard error above the one estimated from the
    residuals."""
    if squares <= 0:
        return 0.0
    shown = _sum(residuals[1:] * residuals[:-1]) / squares
    low, high = -_MOST_AUTOCORRELATION, _MOST_AUTOCORRELATION
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        powers = _powers(middle, residuals.size)
        expected = _sum(of.neighbour_lags * powers) / _sum(of.residual_lags * powers)
        low, high = (middle, high) if expected < shown else (low, middle)
    with_error = (low + high) / 2 + 1 / math.sqrt(residuals.size)
    return min(max(with_error, 0.0), _MOST_AUTOCORRELATION)


@dataclass(frozen=True)
class _OfLength:
    """What depends only on the number of values, n. Arrays are of shape (n) or (n, n). The ``lags``
    are sums over all pairs of places that are equally far apart, of shape (n); multiplied by powers
    of φ and summed they are traces with R."""

    #: how far apart two places are
    apart: npt.NDArray[np.int64]
    #: the forms of the line and of the parabola, which each change by 1 and have no mean
    shapes: tuple[Floats, Floats]
    #: the sum of squares of each
    squares: tuple[float, float]
    shape_lags: tuple[Floats, Floats]
    #: M, which leaves the residuals of a straight line
    residual_lags: Floats
    #: M L M, the product of residuals and their neighbours
    neighbour_lags: Floats


@functools.lru_cache(maxsize=8)
def _of_length(count: int) -> _OfLength:
    places = np.arange(count)
    apart = np.abs(places[:, None] - places[None, :])
    line = np.linspace(-0.5, 0.5, count)
    arch = -4 * line**2
    arch -= arch.mean()

    def lags(form: Floats) -> Floats:
        sums = np.bincount(apart.ravel(), form.ravel(), minlength=count)
        return sums.astype(np.float64)

    return _OfLength(
        apart,
        (line, arch),
        (_sum(line**2), _sum(arch**2)),
        (lags(np.outer(line, line)), lags(np.outer(arch, arch))),
        lags(_without_line(np.eye(count), line)),
        lags(_without_line((apart == 1) / 2, line)),
    )
