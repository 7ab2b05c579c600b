"""Quantiles of Student's t (Biometrika 6(1), 1908): the half-widths of intervals in standard
errors."""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=4096)
def quantile(degrees_of_freedom: float, share: float = 0.975) -> float:
    """The t below which ``share`` of the distribution lies; ``share`` is at least 0.5 and below 1.

    Degrees of freedom need not be whole: approximations of a variance give any number from 1 on.
    With 0.975, t is the half-width of a 95 % interval, in standard errors. Raises ValueError for
    other arguments.
    """
    # Not at the top: it takes 0.3 s, and most commands need no interval.
    from scipy.special import stdtrit

    if not (degrees_of_freedom >= 1 and 0.5 <= share < 1):
        raise ValueError(f"no t of {degrees_of_freedom} degrees of freedom and a share of {share}")
    # The last digits are those of the processor.
    return float(f"{stdtrit(degrees_of_freedom, share):.9g}")
