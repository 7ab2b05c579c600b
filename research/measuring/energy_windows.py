"""Energy by a counter against energy by the integral of power, over windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class PowerIntegral:
    """The trapezoid rule on power readings (times in s, W), to any time within them."""

    def __init__(self, times: Sequence[float] | Array, power_w: Sequence[float] | Array) -> None:
        order = np.argsort(np.asarray(times, dtype=float), kind="stable")
        self.times = np.asarray(times, dtype=float)[order]
        self._power_w = np.asarray(power_w, dtype=float)[order]
        steps = np.diff(self.times) * (self._power_w[1:] + self._power_w[:-1]) / 2
        self._energy_j = np.concatenate(([0.0], np.cumsum(steps)))

    def __call__(self, times: Array, lag_s: float = 0.0) -> Array:
        """Energy (J) from the first reading to each time; NaN outside of the readings.

        ``lag_s`` is there for callers that may ask for a lag, and must be 0.
        """
        assert lag_s == 0.0
        at = np.clip(np.searchsorted(self.times, times, side="right") - 1, 0, len(self.times) - 1)
        power = np.interp(times, self.times, self._power_w)
        energy = self._energy_j[at] + (times - self.times[at]) * (power + self._power_w[at]) / 2
        inside = (times >= self.times[0]) & (times <= self.times[-1])
        return np.where(inside, energy, np.nan)


def differences(
    counter_times: Array,
    counter_j: Array,
    integral: PowerIntegral,
    window_s: float,
    between: tuple[float, float],
    shift_s: float = 0.0,
) -> Array:
    """Integral over counter, less 1, of every window within ``between`` (s) that begins at a
    reading of the counter and ends at the first one at least ``window_s`` later.

    Power that is stamped ``shift_s`` late is looked up that much later.
    """
    kept = (counter_times >= between[0]) & (counter_times <= between[1])
    times, counted = counter_times[kept], counter_j[kept]
    last = np.searchsorted(times, times + window_s - 1e-9)
    first = np.flatnonzero(last < len(times))
    last = last[first]
    increase = counted[last] - counted[first]
    by_power = integral(times[last] + shift_s) - integral(times[first] + shift_s)
    usable = (increase > 0) & np.isfinite(by_power)
    return np.asarray(by_power[usable] / increase[usable] - 1)


def longest_difference(
    counter_times: Array,
    counter_j: Array,
    integral: PowerIntegral,
    between: tuple[float, float],
    shift_s: float = 0.0,
) -> tuple[float, float]:
    """The same for the longest window within ``between``, and that window's length in seconds.

    Raises ValueError where the counter or power has no two readings there.
    """
    inside = integral.times - shift_s
    kept = (counter_times >= max(between[0], inside[0])) & (
        counter_times <= min(between[1], inside[-1])
    )
    times, counted = counter_times[kept], counter_j[kept]
    if len(times) < 2 or counted[-1] <= counted[0]:
        raise ValueError(f"the energy counter has {len(times)} usable readings in the window")
    by_power = np.diff(integral(times[[0, -1]] + shift_s))[0]
    return float(by_power / (counted[-1] - counted[0]) - 1), float(times[-1] - times[0])


def best_shift(
    counters: Sequence[tuple[Array, Array]],
    integrals: Sequence[PowerIntegral],
    window_s: float,
    between: tuple[float, float],
) -> float:
    """How late (s) power is stamped against the counters of all GPUs: the shift, from −0.3 to
    1.5 s, for which short windows differ least in the root mean square.
    """

    def rms(shift_s: float) -> float:
        found = np.concatenate(
            [
                differences(times, counted, integral, window_s, between, shift_s)
                for (times, counted), integral in zip(counters, integrals, strict=True)
            ]
        )
        return float(np.sqrt(np.mean(found**2))) if len(found) else float("inf")

    return float(min(np.arange(-0.3, 1.5, 0.01), key=rms))
