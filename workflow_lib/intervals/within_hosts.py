"""Estimates how far the runs of two cells lie apart within sessions, with an interval.

A session is runs on one set of GPUs without a long pause. Hosts differ, and so do dates: where a
campaign went on over several of them, their effects are alike only for runs of one session::

    GPUs   1 1 1   1 1      2 2 2        a pause parts the first runs on GPUs 1 from the others
    runs   a b a   b a      b a b
    session  0      1         2

A run *counts* if its session has a run of both sides. The others say nothing about the difference
of the sides within a session. Times and GPUs alone decide this, never a measured value.

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

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from workflow_lib.intervals.differences import COVERAGE, Interval, half_width

Floats = npt.NDArray[np.float64]

#: A longer pause between the starts of two runs ends a session. A date is an effect too: after a
#: night the room, the load of other users and the host's own state may be others. Waiting in a
#: queue, or repeating a run, takes less.
LONGEST_PAUSE_S = 6 * 3600.0

#: a side with a smaller share of the degrees of freedom shows no spread, but for rounding
_LEAST_SHARE = 1e-9


@dataclass(frozen=True)
class Sessions:
    """The session of each run of two cells, and the run's place in it."""

    #: numbers of sessions with runs of both sides, in the order in which they began; None for a run
    #: that does not count
    of_a: tuple[int | None, ...]
    of_b: tuple[int | None, ...]
    #: places by the times at which runs began, among the runs of both sides in the session
    places_a: tuple[int, ...]
    places_b: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many sessions have runs of both sides."""
        return len({*self.of_a, *self.of_b} - {None})

    @property
    def left_out(self) -> int:
        """How many runs do not count."""
        return (*self.of_a, *self.of_b).count(None)

    @property
    def left_out_because(self) -> str:
        """How many runs do not count, and why, in words; "" if all count."""
        if not self.left_out:
            return ""
        runs = "1 run is" if self.left_out == 1 else f"{self.left_out} runs are"
        return f"{runs} left out, because no run of the other side was in the session"

    @property
    def fewest_runs(self) -> int:
        """The number of counted runs, of the side that has fewer."""
        return min(len(side) - side.count(None) for side in (self.of_a, self.of_b))

    @property
    def is_one_side_first(self) -> bool:
        """Whether in every session all runs of one side began before all of the other, and it was
        the same side each time."""
        firsts = {self._first(number) for number in range(self.count)}
        return len(firsts) == 1 and firsts != {""}

    def _first(self, number: int) -> str:
        """Which side began all of its runs of a session before the other, a or b; "" if none."""
        a, b = (
            [place for session, place in zip(of, places, strict=True) if session == number]
            for of, places in ((self.of_a, self.places_a), (self.of_b, self.places_b))
        )
        if max(a) < min(b):
            return "a"
        return "b" if max(b) < min(a) else ""


def sessions(
    began_a: Sequence[float],
    began_b: Sequence[float],
    gpus_a: Sequence[Hashable],
    gpus_b: Sequence[Hashable],
) -> Sessions:
    """The sessions of runs, from the times in s at which they began and their sets of GPUs."""
    began, gpus = [*began_a, *began_b], [*gpus_a, *gpus_b]
    runs_of_sessions: list[list[int]] = []
    for gpu in dict.fromkeys(gpus):
        on_gpu = [run for run, of_run in enumerate(gpus) if of_run == gpu]
        on_gpu.sort(key=lambda run: (began[run], run))
        runs_of_sessions.append(on_gpu[:1])
        for before, after in pairwise(on_gpu):
            if began[after] - began[before] > LONGEST_PAUSE_S:
                runs_of_sessions.append([])
            runs_of_sessions[-1].append(after)
    runs_of_sessions.sort(key=lambda runs: began[runs[0]])
    sides = len(began_a)
    both = [runs for runs in runs_of_sessions if min(runs) < sides <= max(runs)]
    session = {run: number for number, runs in enumerate(both) for run in runs}
    place = {run: number for runs in runs_of_sessions for number, run in enumerate(runs)}
    of = tuple(session.get(run) for run in range(len(began)))
    places = tuple(place[run] for run in range(len(began)))
    return Sessions(of[:sides], of[sides:], places[:sides], places[sides:])


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
        regressors = [self.is_a, place] if drifts else [self.is_a]
        of_sessions = [session == number for number in range(lie.count)]
        columns = np.stack([*of_sessions, *regressors], axis=1)
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
