"""Counter and integral over windows of known energy."""

from __future__ import annotations

import numpy as np
import pytest

from research.measuring.phase_energy import (
    PowerIntegral,
    best_shift,
    differences,
    longest_difference,
)


def test_the_trapezoid_of_a_ramp_is_exact_between_readings():
    integral = PowerIntegral([0.0, 1.0, 2.0], [0.0, 100.0, 200.0])

    assert integral(np.array([0.0, 0.5, 1.5, 2.0])) == pytest.approx([0.0, 12.5, 112.5, 200.0])
    assert np.isnan(integral(np.array([-0.1, 2.1]))).all()


def test_readings_may_come_out_of_order():
    assert PowerIntegral([2.0, 0.0], [50.0, 50.0])(np.array([2.0])) == pytest.approx([100.0])


def test_a_sensor_that_reads_2_percent_high_differs_by_2_percent_in_every_window():
    times = np.arange(0.0, 70.0, 0.5)
    power = np.arange(0.0, 70.0, 0.1)
    integral = PowerIntegral(power, np.full(len(power), 714.0))

    short = differences(times, 700.0 * times, integral, 5.0, (10.0, 70.0))
    whole, length = longest_difference(times, 700.0 * times, integral, (5.0, 65.0))

    # From 10 s on, windows of 5 s begin at 10.0, 10.5, … and end by 69.5.
    assert len(short) == 110
    assert short == pytest.approx(0.02)
    assert (whole, length) == (pytest.approx(0.02), 60.0)


def test_power_stamped_late_is_found_to_be_and_then_agrees():
    late = 0.5
    edges = np.arange(0.0, 60.0, 0.01)
    on = ((edges % 4.0) < 3.0) * 600.0 + 100.0
    counter = np.concatenate(([0.0], np.cumsum(on[:-1] * 0.01)))
    integral = PowerIntegral(edges + late, on)
    counters = [(edges[::50], counter[::50])]

    shift = best_shift(counters, [integral], 5.0, (5.0, 55.0))
    apart = differences(*counters[0], integral, 5.0, (5.0, 55.0))
    shifted = differences(*counters[0], integral, 5.0, (5.0, 55.0), shift)

    assert shift == pytest.approx(late, abs=0.011)
    assert np.abs(apart).max() > 0.05
    assert np.abs(shifted).max() < 0.005


def test_a_counter_that_stands_still_is_refused():
    with pytest.raises(ValueError, match="usable readings"):
        longest_difference(
            np.array([1.0, 2.0]),
            np.array([5.0, 5.0]),
            PowerIntegral([0.0, 3.0], [1.0, 1.0]),
            (0.0, 3.0),
        )
