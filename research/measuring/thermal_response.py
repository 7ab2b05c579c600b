"""How a GPU's temperature follows a step of power: T(t) = T∞ + (T0 − T∞)·exp(−t/τ)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
