"""Energy of a recording: by power as read or as the driver sampled it, against the counter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.measuring.pairs import percentile
from benchmarks.measuring.parts import Log
from benchmarks.measuring.processes import SamplerProcess, series
from research.measuring import energy_windows, polling
from research.measuring.energy_windows import PowerIntegral

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
        shift = energy_windows.best_shift(edges, integrals, _SHORT_WINDOW_S, bursting)
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
            long.append(
                energy_windows.longest_difference(times, joules, integral, between, shift_s)
            )
        except ValueError as error:
            log.row("energy", method=method, stamps=stamped, phase=phase, error=str(error))
            return (method, stamped, phase, str(error), *[""] * 6)
        short.append(
            energy_windows.differences(times, joules, integral, _SHORT_WINDOW_S, between, shift_s)
        )
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
