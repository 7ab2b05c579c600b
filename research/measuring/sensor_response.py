"""What a power sensor does: how often it is renewed, and over which window it is a mean.

A sensor of this kind shows, at each update, the mean of the true power over a box that ends
``delay`` before the update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Array = NDArray[np.float64]
#: from the shortest to the longest window that is looked for
_WINDOWS_S = np.geomspace(0.004, 2.5, 60)
_DELAYS_S = np.linspace(-0.06, 0.3, 37)


@dataclass(frozen=True)
class Window:
    """A sensor's box in seconds, with a 95 % interval of its length."""

    window_s: float
    low_s: float
    high_s: float
    #: from the end of the box to the update
    delay_s: float
    #: the share of the variance that the fit explains
    r2: float
    #: updates that were left out, because no box explains them
    left_out: int


def update_period(change_times: Sequence[float] | Array, seed: int = 1) -> tuple[float, ...]:
    """The median spacing of updates in s and its 95 % interval, from the times (s) at which a
    reading was seen to change.

    An update that repeats the value before it is not seen, and some come late: fewer than half, or
    the median is another. Raises ValueError for fewer than ten changes.
    """
    spacings = np.diff(np.asarray(change_times, dtype=float))
    if len(spacings) < 10:
        raise ValueError(f"{len(spacings) + 1} changes are too few for a period; change the load")
    drawn = np.random.default_rng(seed).integers(0, len(spacings), (1000, len(spacings)))
    ends = np.quantile(np.median(spacings[drawn], axis=1), (0.025, 0.975))
    return tuple(map(float, (np.median(spacings), *ends)))


def fit_window(
    updates: Sequence[tuple[float, float]],
    samples: Sequence[tuple[float, float]],
    draws: int = 400,
    seed: int = 1,
) -> Window:
    """The box over power, as samples of it say, whose mean best explains a sensor's updates; both
    are pairs of s and W.

    About one update in a hundred of H200's is hundreds of watts off, as no box can be: what is
    further off than five standard deviations is left out. The interval is a bootstrap over
    stretches of 1 s. Raises ValueError for fewer than 30 updates within the samples.
    """
    known, power_w = np.array(sorted(samples)).reshape(-1, 2).T
    energy_j = np.cumsum(np.diff(known, prepend=known[:1]) * (power_w + np.roll(power_w, 1)) / 2)
    # Boxes that are looked for have to lie within the samples.
    inside = [each for each in updates if known[0] + 4 < each[0] < known[-1] - 1]
    if len(inside) < 30:
        raise ValueError(f"{len(inside)} updates are too few for a window")
    times, values = np.array(inside).T

    def misses(ends: Array) -> Array:
        if ends[1] - ends[0] < 1e-3:
            return np.full(len(times), np.inf)
        until, since = (np.interp(times - end, known, energy_j) for end in ends)
        return values - (until - since) / (ends[1] - ends[0])

    def middling(ends: Array) -> float:
        return float(np.median(np.abs(misses(ends))))

    grid = [np.array((d, d + w)) for w in _WINDOWS_S for d in _DELAYS_S]
    ends = _descend(middling, min(grid, key=middling), 0.02)
    # For a normal distribution the standard deviation is 1.4826 times the median deviation.
    deviation_w = 1.4826 * middling(ends)
    for _ in range(5):
        kept = np.abs(misses(ends)) <= 5 * deviation_w
        ends = _descend(lambda e, k=kept: float((misses(e)[k] ** 2).sum()), ends, 0.004)
        deviation_w = float(np.sqrt((misses(ends)[kept] ** 2).mean()))
    stretches = np.unique(np.floor(times).astype(int), return_inverse=True)[1]
    count = int(stretches.max()) + 1
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(draws):
        weights = np.bincount(generator.integers(0, count, count), minlength=count)[stretches]
        again = _descend(lambda e, w=weights * kept: float((misses(e) ** 2 * w).sum()), ends, 0.004)
        drawn.append(again[1] - again[0])
    low, high = np.quantile(drawn, (0.025, 0.975))
    r2 = 1 - misses(ends)[kept].var() / values[kept].var()
    window_s = float(ends[1] - ends[0])
    left_out = int((~kept).sum())
    return Window(window_s, float(low), float(high), float(ends[0]), float(r2), left_out)


def _descend(function: Callable[[Array], float], start: Array, step: float) -> Array:
    """A local minimum, to 0.05 ms, from a simplex of that size."""
    simplex = start + step * np.array([(0, 0), (1, 1), (0, 1)])
    options = {"initial_simplex": simplex, "xatol": 5e-5, "fatol": np.inf}
    return minimize(function, start, method="Nelder-Mead", options=options).x
