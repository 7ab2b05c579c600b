"""A sensor's period and window are recovered from what it shows of a known load."""

from __future__ import annotations

import numpy as np
import pytest

from research.measuring.phase_energy import PowerIntegral
from research.measuring.sensor_response import (
    WAVES,
    Drive,
    fit_window,
    fit_window_to_power,
    update_period,
)

PERIODS_S, LENGTHS_S = zip(*WAVES, strict=True)
_GRID_S = 0.0002


def square_waves():
    """Spans of the waves, one after the other, and the time at which each wave begins."""
    spans, begins, start = [], [], 100.0
    for period, length in zip(PERIODS_S, LENGTHS_S, strict=True):
        begins.append(start)
        count = round(length / period)
        spans += [(start + i * period, start + (i + 0.5) * period) for i in range(count)]
        start += count * period
    return spans, begins, start


def sensor(window_s, delay_s, lag_s, period_s, noise_w=2.0, seed=0):
    """Update times and values of a sensor, by adding up a finely sampled power.

    Power falls further in long pauses, and not quite as far in short waves, as a GPU's does.
    """
    spans, begins, end = square_waves()
    generator = np.random.default_rng(seed)
    grid = np.arange(begins[0] - 1.0, end, _GRID_S)
    load = np.zeros_like(grid)
    for on, off in spans:
        load[round((on - grid[0]) / _GRID_S) : round((off - grid[0]) / _GRID_S)] = 1.0
    level, power = 0.0, np.empty_like(grid)
    gain = 1 - np.exp(-_GRID_S / lag_s) if lag_s else 1.0
    for i, value in enumerate(load):
        level += gain * (value - level)
        power[i] = level
    wave = np.searchsorted(begins, grid) - 1
    swing = np.array([440.0, 450.0, 460.0, 480.0, 500.0, 505.0, 520.0, 530.0, 535.0])[wave]
    power = 680.0 - swing + power * swing
    summed = np.concatenate(([0.0], np.cumsum(power)))
    updates = np.arange(begins[0] + 1.3, end, period_s) + generator.uniform(0, 0.002)
    last = np.round((updates - delay_s - grid[0]) / _GRID_S).astype(int)
    length = round(window_s / _GRID_S)
    values = (summed[last] - summed[last - length]) / length
    return updates, values + generator.normal(0, noise_w, len(values)), spans, begins


@pytest.mark.parametrize(
    ("window_s", "period_s", "delay_s", "lag_s"),
    [(0.025, 0.101, 0.012, 0.004), (0.1, 0.1, 0.03, 0.0), (1.0, 0.101, 0.02, 0.006)],
)
def test_windows_are_recovered_within_3_ms(window_s, period_s, delay_s, lag_s):
    times, values, spans, begins = sensor(window_s, delay_s, lag_s, period_s)

    fit = fit_window(times, values, Drive(spans).integral, begins, PERIODS_S, draws=40)

    assert fit.window_s == pytest.approx(window_s, abs=0.003)
    assert fit.low_s <= fit.window_s <= fit.high_s
    assert fit.high_s - fit.low_s < 0.006
    assert fit.delay_s + fit.lag_s == pytest.approx(delay_s + lag_s, abs=0.004)
    assert fit.r2 > 0.95


def test_samples_every_20_ms_of_a_20_ms_box_are_recognised():
    times, values, spans, begins = sensor(0.02, 0.0, 0.003, 0.02)

    fit = fit_window(times, values, Drive(spans).integral, begins, PERIODS_S, draws=5)

    assert fit.window_s == pytest.approx(0.02, abs=0.003)


def test_a_window_over_known_power_is_recovered_within_3_ms_beside_wild_readings():
    times, values, *_ = sensor(1.0, 0.02, 0.006, 0.1, noise_w=4.0)
    sample_times, sample_values, *_ = sensor(0.02, 0.0, 0.006, 0.02)
    inside = (times > sample_times[0] + 2) & (times < sample_times[-1])
    times, values = times[inside], values[inside]
    values[::80] -= 350.0  # as H200's do, about once in a hundred updates

    fit = fit_window_to_power(times, values, PowerIntegral(sample_times, sample_values), draws=60)

    assert fit.left_out == len(values[::80])
    assert fit.window_s == pytest.approx(1.0, abs=0.003)
    assert fit.low_s <= fit.window_s <= fit.high_s
    assert fit.high_s - fit.low_s < 0.006
    # A sample of 20 ms is the mean of what went before, 10 ms ago on average.
    assert fit.delay_s == pytest.approx(0.02 - 0.01, abs=0.003)
    with pytest.raises(ValueError, match="too few"):
        fit_window_to_power(times[:20], values[:20], PowerIntegral(sample_times, sample_values))


@pytest.mark.parametrize("period_s", [0.02, 0.101])
def test_the_period_of_updates_is_recovered_within_2_ms(period_s):
    generator = np.random.default_rng(3)
    updates = np.arange(0.0, 5.0, period_s)
    # Polled every millisecond; every tenth update repeats the value before it.
    seen = (updates + generator.uniform(-0.0005, 0.0005, len(updates)))[
        generator.random(len(updates)) > 0.1
    ]

    period = update_period(seen)

    assert period.mean_s == pytest.approx(period_s, abs=0.0005)
    assert period.low_s <= period.mean_s <= period.high_s
    assert period.high_s - period.low_s < 0.002


def test_a_reading_that_hardly_changes_has_no_period():
    with pytest.raises(ValueError, match="too few"):
        update_period([0.0, 0.1, 0.2])


def test_the_integral_of_a_drive_counts_its_time_on():
    drive = Drive([(1.0, 2.0), (4.0, 4.5)])
    times = np.array([0.0, 1.25, 3.0, 4.25, 9.0])

    assert drive.integral(times) == pytest.approx([0.0, 0.25, 1.0, 1.25, 1.5])


def test_a_lag_delays_the_integral_by_itself_and_loses_nothing():
    drive = Drive([(1.0, 2.0)])

    # After one lag into the span s = 1 − 1/e, hence ∫s = 0.5 − 0.5·(1 − 1/e) = 0.5/e.
    assert drive.integral(np.array([1.5]), 0.5) == pytest.approx([0.5 / np.e])
    assert drive.integral(np.array([50.0]), 0.5) == pytest.approx([1.0])


def test_a_drive_refuses_spans_out_of_order():
    with pytest.raises(ValueError, match="in order"):
        Drive([(2.0, 3.0), (1.0, 1.5)])
