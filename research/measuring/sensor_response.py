"""What a power sensor does to a known load: how often it is renewed, and over which window.

A sensor of this kind shows, at its k-th update, the mean of the true power over a box that ends
``delay`` before the update. Of a load that is either on or off, the box's mean is the share of it
that the load was on, so that update = low + swing · share, for some low and swing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: times (s) → the integral over time, up to each of them, of what a sensor is exposed to
Integral = Callable[[Array], Array]
#: period of a square wave and how long it lasts, in seconds. The periods share no factor with each
#: other or with a sensor's, so that updates meet every phase; the longest lets a box of 1 s fill.
WAVES = (
    (0.043, 2.5),
    (0.097, 2.5),
    (0.151, 2.5),
    (0.251, 3.0),
    (0.499, 3.0),
    (0.797, 4.0),
    (1.201, 6.0),
    (1.999, 8.0),
    (3.109, 12.4),
)
#: from the shortest to the longest window that is looked for
_WINDOWS_S = np.geomspace(0.004, 2.5, 60)
_DELAYS_S = np.linspace(-0.06, 0.3, 37)
#: a wave tells of a window that is neither far longer nor far shorter than its period
_PERIODS_PER_WINDOW = (0.5, 20.0)


@dataclass(frozen=True)
class Period:
    """Spacing of a sensor's updates in seconds, with a 95 % interval of its mean."""

    mean_s: float
    low_s: float
    high_s: float
    median_s: float
    updates: int


@dataclass(frozen=True)
class Window:
    """A sensor's box, all in seconds but r2, the share of the variance that the fit explains."""

    window_s: float
    low_s: float
    high_s: float
    #: from the end of the box to the update
    delay_s: float
    #: time constant with which power follows the load
    lag_s: float
    r2: float
    points: int
    #: updates that were left out, because no box explains them
    left_out: int = 0


def update_period(change_times: Sequence[float] | Array, seed: int = 1) -> Period:
    """The spacing of updates, from the times (s) at which a reading was seen to change.

    An update that repeats the value before it is not seen, so a spacing may be a multiple of the
    period. Raises ValueError for fewer than ten changes.
    """
    spacings = np.diff(np.asarray(change_times, dtype=float))
    if len(spacings) < 10:
        raise ValueError(f"{len(spacings) + 1} changes are too few for a period; change the load")
    typical = np.quantile(spacings, 0.25)
    near = spacings[(spacings > 0.5 * typical) & (spacings < 1.5 * typical)]
    single = spacings / np.maximum(1, np.round(spacings / np.median(near)))
    multiples = np.maximum(1, np.round(spacings / np.median(single)))
    means = [
        spacings[drawn].sum() / multiples[drawn].sum()
        for drawn in np.random.default_rng(seed).integers(0, len(spacings), (1000, len(spacings)))
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return Period(
        float(spacings.sum() / multiples.sum()),
        float(low),
        float(high),
        float(np.median(spacings / multiples)),
        len(spacings) + 1,
    )


class Drive:
    """A load that is 1 within its spans (start, end; s, in order) and 0 elsewhere."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._edges: Array = np.asarray(spans, dtype=float).ravel()
        if len(self._edges) == 0 or np.any(np.diff(self._edges) < 0):
            raise ValueError("a drive needs spans that are in order and do not overlap")
        lengths = np.diff(self._edges)
        self._levels = np.arange(len(self._edges)) % 2 == 0  # from each edge on
        self._on_s = np.concatenate(([0.0], np.cumsum(lengths * self._levels[:-1])))
        self._smoothed: dict[float, Array] = {}

    def integral(self, times: Array, lag_s: float = 0.0) -> Array:
        """Time (s) that the load was on up to each time, power following it with a lag.

        With lag τ the level s obeys s' = (load − s)/τ, hence ∫s = ∫load − τ·s.
        """
        at = np.searchsorted(self._edges, times, side="right") - 1
        before = at < 0
        at = np.maximum(at, 0)
        since = times - self._edges[at]
        level = self._levels[at].astype(float)
        on_s = self._on_s[at] + level * since
        if lag_s > 0:
            start = self._levels_at_edges(lag_s)[at]
            on_s -= lag_s * (level + (start - level) * np.exp(-np.maximum(since, 0) / lag_s))
        return np.where(before, 0.0, on_s)

    def _levels_at_edges(self, lag_s: float) -> Array:
        if lag_s not in self._smoothed:
            levels = [0.0]
            decays = np.exp(-np.diff(self._edges) / lag_s)
            for load, decay in zip(self._levels, decays, strict=False):
                levels.append(load + (levels[-1] - load) * decay)
            self._smoothed = {lag_s: np.asarray(levels)}
        return self._smoothed[lag_s]


def fit_window(
    times: Array,
    values: Array,
    integral: Callable[[Array, float], Array],
    wave_begins: Sequence[float],
    wave_periods_s: Sequence[float],
    draws: int = 200,
    seed: int = 1,
) -> Window:
    """The box that best explains a sensor's updates, by least squares.

    ``times`` (s) and ``values`` (W) are its updates. Waves follow one another without a pause; they
    begin at ``wave_begins`` (s) and have the periods given. ``integral`` is, for times and a lag
    (s), the integral of the load. Every wave has a low and a swing of its own, because how deep
    power falls depends on the period, so boxes that reach into the wave before are left out. The
    interval is a bootstrap over stretches of one second.

    Raises ValueError for fewer than 30 updates.
    """
    inside = times >= wave_begins[0]
    times, values = times[inside], values[inside]
    if len(times) < 30:
        raise ValueError(f"{len(times)} updates during the waves are too few for a window")
    begins = np.asarray(wave_begins, dtype=float)
    waves = np.searchsorted(begins, times, side="right") - 1
    since = times - begins[waves]
    everything = np.ones(len(times))
    lag_s = 0.0

    def misfit(ends: Array, weights: Array, lag: float) -> float:
        return _misfit(times, values, integral, waves, weights, ends[0], ends[1], lag)

    def look(weights: Array) -> Array:
        coarse = (
            (misfit(np.array((d, d + w)), weights, 0.0), d, d + w)
            for w in _WINDOWS_S
            for d in _DELAYS_S
        )
        _, first, last = min(coarse)
        return _descend(lambda ends: misfit(ends, weights, 0.0), np.array((first, last)), 0.02)

    ends = look(everything)
    low, high = (share * (ends[1] - ends[0]) for share in _PERIODS_PER_WINDOW)
    telling = np.array([low <= period <= high for period in wave_periods_s])
    kept = (telling[waves] & (since > ends[1])).astype(float)
    if len(np.unique(waves[kept > 0])) >= 2:
        everything = kept
        ends = look(everything)
    found = _descend(
        lambda p: float("inf") if not 0 <= p[2] <= 0.1 else misfit(p[:2], everything, float(p[2])),
        np.array((*ends, 0.004)),
        0.008,
    )
    ends, lag_s = found[:2], float(found[2])
    stretches = np.unique(np.floor(times).astype(int), return_inverse=True)[1]
    generator = np.random.default_rng(seed)
    count = int(stretches.max()) + 1
    drawn = []
    for _ in range(draws):
        weights = np.bincount(generator.integers(0, count, count), minlength=count)
        sample = everything * weights[stretches]
        again = _descend(lambda e, s=sample: misfit(e, s, lag_s), ends, 0.004)
        drawn.append(again[1] - again[0])
    interval = np.quantile(drawn, (0.025, 0.975)) if drawn else (float("nan"),) * 2
    total = _misfit_without(values, waves, everything)
    return Window(
        float(ends[1] - ends[0]),
        float(interval[0]),
        float(interval[1]),
        float(ends[0]),
        lag_s,
        1 - misfit(ends, everything, lag_s) / total if total > 0 else float("nan"),
        int(np.count_nonzero(everything)),
    )


def fit_window_to_power(
    times: Array, values: Array, energy: Integral, draws: int = 400, seed: int = 1
) -> Window:
    """The box over power, known otherwise, whose mean best explains a sensor's updates.

    ``energy`` (J) is its integral, so that neither a low nor a swing is to be found. About one
    update in a hundred of H200's is hundreds of watts off, as no box can be: what is further off
    than five standard deviations is left out. The interval is a bootstrap over stretches of 1 s.

    Raises ValueError for fewer than 30 updates.
    """
    if len(times) < 30:
        raise ValueError(f"{len(times)} updates are too few for a window")

    def misses(ends: Array) -> Array:
        if ends[1] - ends[0] < 1e-3:
            return np.full(len(times), np.inf)
        means = (energy(times - ends[0]) - energy(times - ends[1])) / (ends[1] - ends[0])
        return values - means

    grid = [np.array((d, d + w)) for w in _WINDOWS_S for d in _DELAYS_S]
    ends = min(grid, key=lambda e: float(np.median(np.abs(misses(e)))))
    ends = _descend(lambda e: float(np.median(np.abs(misses(e)))), ends, 0.02)
    # For a normal distribution the standard deviation is 1.4826 times the median deviation.
    deviation_w = 1.4826 * float(np.median(np.abs(misses(ends))))
    kept = np.ones(len(times), dtype=bool)
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
    left = misses(ends)[kept]
    return Window(
        float(ends[1] - ends[0]),
        float(low),
        float(high),
        float(ends[0]),
        0.0,
        float(1 - left.var() / values[kept].var()),
        int(kept.sum()),
        int((~kept).sum()),
    )


def _misfit(
    times: Array,
    values: Array,
    integral: Callable[[Array, float], Array],
    waves: NDArray[np.intp],
    weights: Array,
    first: float,
    last: float,
    lag_s: float,
) -> float:
    """Sum of squares (W²) that boxes from ``last`` to ``first`` before each update leave."""
    if last - first < 1e-3:
        return float("inf")
    share = (integral(times - first, lag_s) - integral(times - last, lag_s)) / (last - first)
    count = np.maximum(np.bincount(waves, weights), 1e-12)
    x = share - (np.bincount(waves, weights * share) / count)[waves]
    y = values - (np.bincount(waves, weights * values) / count)[waves]
    xx = np.bincount(waves, weights * x * x)
    xy = np.maximum(np.bincount(waves, weights * x * y), 0.0)  # more load is never less power
    explained = np.divide(xy**2, xx, out=np.zeros_like(xy), where=xx > 1e-9)
    return float((np.bincount(waves, weights * y * y) - explained).sum())


def _misfit_without(values: Array, waves: NDArray[np.intp], weights: Array) -> float:
    count = np.maximum(np.bincount(waves, weights), 1e-12)
    y = values - (np.bincount(waves, weights * values) / count)[waves]
    return float((weights * y * y).sum())


def _descend(function: Callable[[Array], float], start: Array, step: float) -> Array:
    """A local minimum by compass search, to 0.05 ms (Kolda and others 2003, section 1.1)."""
    point, best = start, function(start)
    directions = [sign * axis for axis in np.eye(len(start)) for sign in (1.0, -1.0)]
    directions += [sign * np.ones(len(start)) for sign in (1.0, -1.0)]
    while step > 5e-5:
        for direction in directions:
            if (value := function(point + step * direction)) < best:
                point, best = point + step * direction, value
                break
        else:
            step /= 2
    return point
