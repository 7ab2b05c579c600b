"""Quantiles of Student's t (Biometrika 6(1), 1908): the half-widths of intervals in standard
errors."""

from __future__ import annotations

import functools
import math

import numpy as np

#: points on a quarter of a circle over which the distribution is integrated
_PLACES = 4001
#: with more degrees of freedom the distribution is normal to within one part in 10,000
_MOST_DEGREES = 10_000.0


@functools.lru_cache(maxsize=4096)
def quantile(degrees_of_freedom: float, share: float = 0.975) -> float:
    """The t below which ``share`` of the distribution lies; ``share`` is at least 0.5 and below 1.

    Degrees of freedom need not be whole: approximations of a variance give any number from 1 on.
    With 0.975, t is the half-width of a 95 % interval, in standard errors. Raises ValueError for
    other arguments.
    """
    if not (degrees_of_freedom >= 1 and 0.5 <= share < 1):
        raise ValueError(f"no t of {degrees_of_freedom} degrees of freedom and a share of {share}")
    degrees = min(degrees_of_freedom, _MOST_DEGREES)
    # With t = √n·tan(a) the density is a power of a cosine.
    angles = np.linspace(0.0, math.pi / 2, _PLACES)
    density = np.cos(angles) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = np.interp(2 * share - 1, mass / mass[-1], angles)
    # The integral is good to about six digits, and the last ones are those of the processor.
    return float(f"{math.sqrt(degrees) * math.tan(float(angle)):.9g}")
