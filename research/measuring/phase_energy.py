"""Energy of a recording: by power as read or as the driver sampled it, against the counter.

Energy by a counter against energy by the integral of power, over windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring.pairs import percentile
from benchmarks.measuring.parts import Log
from benchmarks.measuring.processes import SamplerProcess, series
from research.measuring import polling

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


_WINDOW_S, _SHORT_WINDOW_S = 60.0, 5.0


def tell_energy(
    log: Log,
    sampler: SamplerProcess,
    seen: Mapping[int, Sequence[polling.Change]],
    loaded: tuple[float, float],
    bursting: tuple[float, float],
) -> None:
    """Integral over counter, less 1: by each kind of power, as stamped and shifted to agree best.

    ``seen`` has the counter as it was renewed, ``loaded`` and ``bursting`` are spans of the wall
    clock (s).
    """
    ticks = sampler.rows(sampler.paths.gpu_samples(sampler.node))
    driver = sampler.rows(sampler.paths.power_samples(sampler.node))
    counted = sampler.rows(sampler.paths.gpu_counters(sampler.node))
    gpus = sorted(seen)
    edges = [
        (np.array([(c[0] + c[1]) / 2 for c in seen[gpu]]), np.array([c[2] for c in seen[gpu]]))
        for gpu in gpus
    ]
    methods = {
        "readings at 10 Hz": [
            series(ticks, gpu, "unix_time_s", "power_w", 1.0, 1.0) for gpu in gpus
        ],
        "driver's samples": [
            series(driver, gpu, "driver_time_us", "power_mw", 1e-6, 1e-3) for gpu in gpus
        ],
    }
    # Windows of the steady load leave its edges out, which are in those of the bursts.
    spans = {"steady": (loaded[0] + 1.5, loaded[1]), "bursts": bursting}
    rows = []
    for method, of_gpus in methods.items():
        if any(len(times) < 2 for times, _ in of_gpus):
            log.say(f"{method}: none were recorded")
            log.row("energy", method=method, error="none were recorded")
            continue
        integrals = [PowerIntegral(*one) for one in of_gpus]
        shift = best_shift(edges, integrals, _SHORT_WINDOW_S, bursting)
        for stamped, shift_s in (("as stamped", 0.0), (f"{1e3 * shift:+.0f} ms", shift)):
            for phase, between in spans.items():
                rows.append(_row(log, method, stamped, phase, edges, integrals, between, shift_s))
    own = [series(counted, gpu, "unix_time_s", "energy_j", 1.0, 1.0) for gpu in gpus]
    readings_10 = [PowerIntegral(*one) for one in methods["readings at 10 Hz"]]
    both = (loaded[0] - 1.0, bursting[1] + 1.0)
    rows.append(
        _row(
            log,
            "readings, sampler's counter",
            "as stamped",
            "all phases",
            own,
            readings_10,
            both,
            0,
        )
    )
    log.table(
        (
            "|integral / counter − 1|, %",
            "stamps",
            "phase",
            "window s",
            "median",
            "p95 of GPUs",
            "worst",
            "5 s median",
            "p95",
            "windows",
        ),
        rows,
    )


def _row(
    log: Log,
    method: str,
    stamped: str,
    phase: str,
    counters: Sequence[tuple[Any, Any]],
    integrals: Sequence[PowerIntegral],
    between: tuple[float, float],
    shift_s: float,
) -> tuple[str, ...]:
    long, short = [], []
    for (times, joules), integral in zip(counters, integrals, strict=True):
        try:
            long.append(longest_difference(times, joules, integral, between, shift_s))
        except ValueError as error:
            log.row("energy", method=method, stamps=stamped, phase=phase, error=str(error))
            return (method, stamped, phase, str(error), *[""] * 6)
        short.append(differences(times, joules, integral, _SHORT_WINDOW_S, between, shift_s))
    apart = [100 * abs(difference) for difference, _ in long]
    pooled = [100 * abs(difference) for differences in short for difference in differences]
    length_s = min(length for _, length in long)
    log.row(
        "energy",
        method=method,
        stamps=stamped,
        shift_s=shift_s,
        phase=phase,
        window_s=length_s,
        differences=[difference for difference, _ in long],
        short_median=percentile(pooled, 0.5) / 100,
        short_p95=percentile(pooled, 0.95) / 100,
        short_windows=len(pooled),
        long_enough=length_s >= _WINDOW_S,
    )
    return (
        method,
        stamped,
        phase,
        f"{length_s:.1f}",
        f"{percentile(apart, 0.5):.3f}",
        f"{percentile(apart, 0.95):.3f}",
        f"{max(apart):.3f}",
        f"{percentile(pooled, 0.5):.3f}",
        f"{percentile(pooled, 0.95):.3f}",
        str(len(pooled)),
    )
