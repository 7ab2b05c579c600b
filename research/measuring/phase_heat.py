"""Heat of a recording: time constants, and what each slot settled at.

How a GPU's temperature follows a step of power: T(t) = T∞ + (T0 − T∞)·exp(−t/τ).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring.parts import Log
from benchmarks.measuring.processes import SamplerProcess, series

Array = NDArray[np.float64]
#: time constants that are looked at
_CONSTANTS_S = np.geomspace(0.3, 300.0, 240)
#: readings are whole degrees, so their errors hang together for about this long
_STRETCH_S = 3.0


@dataclass(frozen=True)
class Exponential:
    """The fit of one exponential; temperatures in °C, τ in s with its 95 % interval."""

    time_constant_s: float
    low_s: float
    high_s: float
    first_c: float
    final_c: float
    r2: float
    residual_c: float


@dataclass(frozen=True)
class TwoExponentials:
    """The fit of a fast and a slow exponential: time constants, and the fast one's share."""

    fast_s: float
    slow_s: float
    fast_share: float
    r2: float
    residual_c: float


def fit_exponential(
    times_s: Array, temperatures_c: Array, draws: int = 200, seed: int = 1
) -> Exponential:
    """Least squares for one exponential; times are since the step.

    The interval is a bootstrap of residuals in stretches of some seconds. Raises ValueError for
    temperatures that do not change.
    """
    y = np.asarray(temperatures_c, dtype=float)
    t = np.asarray(times_s, dtype=float)
    total = float(((y - y.mean()) ** 2).sum())
    if total == 0:
        raise ValueError("the temperature did not change, so there is no time constant to fit")
    constant = _best_constant(t, y)
    fitted, (final, amplitude) = _fitted(t, y, (constant,))
    residuals = y - fitted
    stretch = max(1, int(np.searchsorted(t - t[0], _STRETCH_S)))
    pieces = [residuals[i : i + stretch] for i in range(0, len(y), stretch)]
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(draws):
        chosen = generator.integers(0, len(pieces), 2 * len(pieces))
        noise = np.concatenate([pieces[i] for i in chosen])[: len(y)]
        drawn.append(_best_constant(t, fitted + noise))
    low, high = np.quantile(drawn, (0.025, 0.975)) if drawn else (float("nan"),) * 2
    squares = float((residuals**2).sum())
    return Exponential(
        constant,
        float(low),
        float(high),
        float(final + amplitude),
        float(final),
        1 - squares / total,
        float(np.sqrt(squares / len(y))),
    )


def fit_two_exponentials(times_s: Array, temperatures_c: Array) -> TwoExponentials:
    """Least squares for two exponentials over a grid of time constants."""
    y = np.asarray(temperatures_c, dtype=float)
    t = np.asarray(times_s, dtype=float)
    grid = np.geomspace(0.5, 200.0, 40)
    pairs = [(fast, slow) for fast in grid for slow in grid if slow >= 2 * fast]
    squares, fast, slow = min(
        (float(((y - _fitted(t, y, pair)[0]) ** 2).sum()), *pair) for pair in pairs
    )
    _, (_, of_fast, of_slow) = _fitted(t, y, (fast, slow))
    total = float(((y - y.mean()) ** 2).sum())
    return TwoExponentials(
        float(fast),
        float(slow),
        float(of_fast / (of_fast + of_slow)),
        1 - squares / total,
        float(np.sqrt(squares / len(y))),
    )


def _fitted(t: Array, y: Array, constants: tuple[float, ...]) -> tuple[Array, Array]:
    """The best curve with these time constants, and its coefficients: T∞, then amplitudes."""
    design = np.stack([np.ones_like(t), *(np.exp(-t / constant) for constant in constants)], 1)
    coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
    return design @ coefficients, coefficients


def _best_constant(t: Array, y: Array) -> float:
    """The time constant that leaves least: over a grid at once, then by a parabola through it."""
    decays = np.exp(-t[None, :] / _CONSTANTS_S[:, None])
    x = decays - decays.mean(1, keepdims=True)
    centred = y - y.mean()
    explained = (x @ centred) ** 2 / np.maximum((x * x).sum(1), 1e-12)
    best = int(np.argmax(explained))
    if not 0 < best < len(_CONSTANTS_S) - 1:
        return float(_CONSTANTS_S[best])
    before, here, after = explained[best - 1 : best + 2]
    curvature = before - 2 * here + after
    offset = 0.5 * (before - after) / curvature if curvature < 0 else 0.0
    ratio = _CONSTANTS_S[1] / _CONSTANTS_S[0]
    return float(_CONSTANTS_S[best] * ratio**offset)


def tell_time_constants(
    log: Log, gpus: int, sampler: SamplerProcess, loaded: tuple[float, float], cooled_unix_s: float
) -> None:
    """Time constants of heating and of cooling."""
    ticks = sampler.rows(sampler.paths.gpu_samples(sampler.node))
    rows = []
    for gpu in range(gpus):
        times, degrees = series(ticks, gpu, "unix_time_s", "temperature_c", 1.0, 1.0)
        for name, start, end in (
            ("heating", *loaded),
            ("cooling", loaded[1], cooled_unix_s),
        ):
            kept = (times >= start) & (times < end)
            try:
                one = fit_exponential(times[kept] - start, degrees[kept])
                two = fit_two_exponentials(times[kept] - start, degrees[kept])
            except ValueError as error:
                log.row("thermal", gpu=gpu, step=name, error=str(error))
                rows.append((str(gpu), name, str(error), *[""] * 8))
                continue
            log.row("thermal", gpu=gpu, step=name, one=one, two=two)
            rows.append(
                (
                    str(gpu),
                    name,
                    f"{one.time_constant_s:.1f}",
                    f"{one.low_s:.1f}–{one.high_s:.1f}",
                    f"{one.first_c:.1f}",
                    f"{one.final_c:.1f}",
                    f"{one.r2:.4f}",
                    f"{one.residual_c:.2f}",
                    f"{two.fast_s:.1f} ({100 * two.fast_share:.0f} %)",
                    f"{two.slow_s:.1f}",
                    f"{two.r2:.4f}, {two.residual_c:.2f}",
                )
            )
    log.table(
        (
            "GPU",
            "step",
            "τ/s",
            "95 %",
            "T0/°C",
            "T∞/°C",
            "R²",
            "rms/°C",
            "of two: fast/s",
            "slow/s",
            "R², rms",
        ),
        rows,
    )


def tell_slots(log: Log, gpus: int, sampler: SamplerProcess, loaded: tuple[float, float]) -> None:
    """Temperature, power, clock and shares of throttling in the last 20 s of the load."""
    ticks = sampler.rows(sampler.paths.gpu_samples(sampler.node))
    counted = sampler.rows(sampler.paths.gpu_counters(sampler.node))
    start, end = loaded[1] - 20.0, loaded[1]
    rows = []
    for gpu in range(gpus):
        means = {}
        for column in ("temperature_c", "power_w", "sm_clock_mhz"):
            times, values = series(ticks, gpu, "unix_time_s", column, 1.0, 1.0)
            kept = values[(times >= start) & (times <= end)]
            means[column] = statistics.fmean(kept) if len(kept) else float("nan")
        times, bits = series(ticks, gpu, "unix_time_s", "event_reasons", 1.0, 1.0)
        inside = bits[(times >= loaded[0] + 1) & (times <= end)].astype(int)
        shares = {
            column: _share(*series(counted, gpu, "unix_time_s", column, 1.0, 1.0), loaded)
            for column in (
                "throttle_power_cap_s",
                "throttle_sw_thermal_s",
                "throttle_hw_thermal_s",
                "throttle_power_brake_s",
            )
        }
        by_bits = float(np.mean((inside & 0x4) != 0)) if len(inside) else float("nan")
        memory = series(counted, gpu, "unix_time_s", "memory_temperature_c", 1.0, 1.0)
        hottest = memory[1][(memory[0] >= start) & (memory[0] <= end)]
        memory_c = float(np.mean(hottest)) if len(hottest) else float("nan")
        log.row(
            "slots",
            gpu=gpu,
            **means,
            memory_temperature_c=memory_c,
            power_cap_by_bits=by_bits,
            shares=shares,
        )
        rows.append(
            (
                str(gpu),
                f"{means['temperature_c']:.1f}",
                f"{memory_c:.1f}",
                f"{means['power_w']:.1f}",
                f"{means['sm_clock_mhz']:.0f}",
                *(f"{100 * share:.1f}" for share in shares.values()),
                f"{100 * by_bits:.1f}",
            )
        )
    log.table(
        (
            "GPU",
            "core/°C",
            "memory/°C",
            "power/W",
            "SM/MHz",
            "cap/%",
            "SW thermal/%",
            "HW thermal/%",
            "brake/%",
            "cap by bits/%",
        ),
        rows,
    )


def _share(times: Any, seconds: Any, between: tuple[float, float]) -> float:
    """Share of time that a cumulative time grew by, between its first and last reading there."""
    kept = (times >= between[0] + 1) & (times <= between[1])
    if kept.sum() < 2:
        return float("nan")
    return float(np.ptp(seconds[kept]) / np.ptp(times[kept]))
