"""Time constants are recovered from temperatures in whole degrees."""

from __future__ import annotations

import numpy as np
import pytest

from research.measuring.phase_heat import fit_exponential, fit_two_exponentials


@pytest.mark.parametrize(("first", "final"), [(32.0, 64.0), (64.0, 33.0)])
def test_one_time_constant_is_recovered_from_whole_degrees(first, final):
    times = np.arange(0, 60, 0.1)
    exact = final + (first - final) * np.exp(-times / 14.0)

    fit = fit_exponential(times, np.round(exact), draws=50)

    assert fit.time_constant_s == pytest.approx(14.0, rel=0.03)
    assert fit.low_s < 14.0 < fit.high_s
    assert fit.final_c == pytest.approx(final, abs=0.5)
    assert fit.first_c == pytest.approx(first, abs=0.7)
    assert fit.r2 > 0.99
    # Rounding to whole degrees alone leaves 1/√12 = 0.29 °C.
    assert fit.residual_c == pytest.approx(0.29, abs=0.05)


def test_two_time_constants_are_told_apart():
    times = np.arange(0, 90, 0.1)
    exact = 65 - 12 * np.exp(-times / 2.0) - 18 * np.exp(-times / 30.0)

    one = fit_exponential(times, exact, draws=2)
    two = fit_two_exponentials(times, exact)

    assert two.fast_s == pytest.approx(2.0, rel=0.15)
    assert two.slow_s == pytest.approx(30.0, rel=0.15)
    assert two.fast_share == pytest.approx(0.4, abs=0.04)
    assert two.r2 > one.r2


def test_a_temperature_that_does_not_change_has_no_time_constant():
    with pytest.raises(ValueError, match="did not change"):
        fit_exponential(np.arange(10.0), np.full(10, 40.0))
