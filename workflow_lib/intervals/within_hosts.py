"""Estimates how far the runs of two cells lie apart within sessions, with an interval.

Least squares find the effect of each session and that of the side, which add up: the additive model
of blocks (W. G. Cochran and G. M. Cox, Experimental Designs, 2nd edition, 1957, chapter 4), with
unequal numbers of runs (F. Yates, Journal of the American Statistical Association 29(185), 1934)::

    value  =  session  +  side  +  noise
    value  =  session  +  side  +  drift · place in the session  +  noise

What acts on all runs of a session alike, such as its host or its date, cancels. The second line
removes a steady drift per run; the time between sessions does not matter to it. The result spans
the intervals of both, as that of :func:`~workflow_lib.intervals.differences.apart` does. If all
runs of one side come first in every session, the drift and the side are hard to tell apart, and the
second interval is wide.

If both sides have the same number of runs, one spread of noise is taken for both: Student's t with
as many degrees of freedom as there are runs less coefficients. With one run of each side in every
session, the first interval is that of paired differences. With unequal numbers, one spread would
tell equal cells apart in a quarter of cases where the side with fewer runs has the wider spread.
Then each side has a spread: the sum of its squared residuals over its share of those degrees. The
degrees are Satterthwaite's (Biometrics Bulletin 2(6), 1946).
``tests/intervals/test_within_hosts.py`` checks error rates by simulation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workflow_lib.intervals.differences import COVERAGE, Interval, half_width
from workflow_lib.intervals.sessions import Sessions

Floats = npt.NDArray[np.float64]

#: a side with a smaller share of the degrees of freedom shows no spread, but for rounding
_LEAST_SHARE = 1e-9


def within_hosts(
    a: Sequence[float], b: Sequence[float], lie: Sessions, coverage: float = COVERAGE
) -> Interval:
    """The effect of side A less that of B, over the runs that count, without and with a drift.

    Raises ValueError if the runs cannot tell these effects: see :func:`is_estimable`.
    """
    values = _counted(a, b, lie)
    plain, corrected = (
        _Model(lie, drifts).interval(values, _SIDE, coverage) for drifts in (False, True)
    )
    return Interval(plain.estimate, min(plain.low, corrected.low), max(plain.high, corrected.high))


def drift(a: Sequence[float], b: Sequence[float], lie: Sessions) -> Interval:
    """The drift per run of a session, with its interval."""
    return _Model(lie, drifts=True).interval(_counted(a, b, lie), _DRIFT)


def is_estimable(lie: Sessions) -> bool:
    """Whether the runs can tell sessions, sides and a drift from each other and from noise."""
    try:
        for drifts in (False, True):
            _Model(lie, drifts)
    except ValueError:
        return False
    return True


def _counted(a: Sequence[float], b: Sequence[float], lie: Sessions) -> Floats:
    """The values of the runs that count, of A and then of B."""
    every = zip((*a, *b), (*lie.of_a, *lie.of_b), strict=True)
    return np.array([value for value, session in every if session is not None], dtype=float)


#: rows of :attr:`_Model.weights`
_SIDE, _DRIFT = 0, 1


class _Model:
    """Least squares for the runs that count, whose values come later."""

    def __init__(self, lie: Sessions, drifts: bool) -> None:
        every = zip(
            (*lie.of_a, *lie.of_b),
            (*lie.places_a, *lie.places_b),
            [True] * len(lie.of_a) + [False] * len(lie.of_b),
            strict=True,
        )
        runs = [run for run in every if run[0] is not None]
        session, place, self.is_a = (np.array(column) for column in zip(*runs, strict=True))
        told = [self.is_a, place] if drifts else [self.is_a]
        columns = np.stack([*(session == each for each in range(lie.count)), *told], axis=1)
        columns = columns.astype(float)
        #: the first run of each run's session
        self.first = np.argmax(session[:, None] == session[None, :], axis=1)
        self.degrees = len(runs) - columns.shape[1]
        solved = np.linalg.pinv(columns)
        #: the weights of values in the effects of the side and the drift
        self.weights: Floats = solved[lie.count :]
        self.residuals: Floats = np.eye(len(runs)) - columns @ solved
        #: the degrees of freedom that each side has of those of the residuals
        self.shares = [float(np.diag(self.residuals)[side].sum()) for side in self._sides]
        full = np.linalg.matrix_rank(columns) == columns.shape[1]
        if not full or self.degrees < 1 or min(self.shares) < _LEAST_SHARE:
            raise ValueError("the runs cannot tell sessions, sides and a drift from each other")

    @property
    def _sides(self) -> list[npt.NDArray[np.bool_]]:
        return [self.is_a, ~self.is_a]

    def interval(self, values: Floats, effect: int, coverage: float = COVERAGE) -> Interval:
        """An effect with its interval."""
        # So equal values of a session differ by nothing, not even by rounding.
        values = values - values[self.first]
        weights = self.weights[effect]
        estimate = float(weights @ values)
        squares = np.square(self.residuals @ values)
        groups, degrees = [np.full(values.size, True)], [float(self.degrees)]
        if self.is_a.sum() != (~self.is_a).sum():
            groups, degrees = self._sides, self.shares
        variances = [
            float(squares[group].sum()) / of * float(weights[group] @ weights[group])
            for group, of in zip(groups, degrees, strict=True)
        ]
        half = half_width(variances, degrees, coverage)
        return Interval(estimate, estimate - half, estimate + half)
