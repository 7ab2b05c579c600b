"""A sensor's period and window are recovered from what it shows of a known load, and readings from
a library that answers as NVML does.
"""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from research.measuring import readings
from research.measuring.load import square_waves
from research.measuring.sensor_response import fit_window, update_period
from research.sensors_on_gpus import WAVES

_GRID_S = 0.0002


def sensor(window_s, delay_s, lag_s, period_s, noise_w=2.0):
    """Times and values that a sensor shows of the benchmark's waves, by adding up a finely sampled
    power that follows the load with a lag.
    """
    spans = [(100.0 + on, 100.0 + off) for on, off in square_waves(WAVES)]
    generator = np.random.default_rng(0)
    grid = np.arange(99.0, spans[-1][1], _GRID_S)
    load = np.zeros_like(grid)
    for on, off in spans:
        load[round((on - grid[0]) / _GRID_S) : round((off - grid[0]) / _GRID_S)] = 1.0
    level, power = 0.0, np.empty_like(grid)
    gain = 1 - np.exp(-_GRID_S / lag_s)
    for i, value in enumerate(load):
        level += gain * (value - level)
        power[i] = 180.0 + 500.0 * level
    summed = np.concatenate(([0.0], np.cumsum(power)))
    updates = np.arange(101.3, spans[-1][1], period_s) + generator.uniform(0, 0.002)
    last = np.round((updates - delay_s - grid[0]) / _GRID_S).astype(int)
    length = round(window_s / _GRID_S)
    values = (summed[last] - summed[last - length]) / length
    return updates, values + generator.normal(0, noise_w, len(values))


def pairs(times, values):
    return list(zip(times, values, strict=True))


def test_a_window_over_known_power_is_recovered_within_3_ms_beside_wild_readings():
    times, values = sensor(1.0, 0.02, 0.006, 0.1, noise_w=4.0)
    samples = pairs(*sensor(0.02, 0.0, 0.006, 0.02))
    inside = (times > samples[0][0] + 4) & (times < samples[-1][0] - 1)
    times, values = times[inside], values[inside]
    values[::80] -= 350.0  # as H200's do, about once in a hundred updates

    fit = fit_window(pairs(times, values), samples, draws=60)

    assert fit.left_out == len(values[::80])
    assert fit.window_s == pytest.approx(1.0, abs=0.003)
    assert fit.low_s <= fit.window_s <= fit.high_s
    assert fit.high_s - fit.low_s < 0.006
    # A sample of 20 ms is the mean of what went before, 10 ms ago on average.
    assert fit.delay_s == pytest.approx(0.02 - 0.01, abs=0.003)
    assert fit.r2 > 0.95
    with pytest.raises(ValueError, match="too few"):
        fit_window(pairs(times[:20], values[:20]), samples)


@pytest.mark.parametrize("period_s", [0.02, 0.101])
def test_the_period_of_updates_is_recovered_within_2_ms(period_s):
    generator = np.random.default_rng(3)
    updates = np.arange(0.0, 5.0, period_s)
    # Polled every millisecond; every tenth update repeats the value before it.
    polled = updates + generator.uniform(-0.0005, 0.0005, len(updates))
    seen = polled[generator.random(len(updates)) > 0.1]

    mean, low, high = update_period(seen)

    assert mean == pytest.approx(period_s, abs=0.0005)
    assert low <= mean <= high
    assert high - low < 0.002
    with pytest.raises(ValueError, match="too few"):
        update_period(seen[:3])


def test_waves_follow_one_another_half_of_each_period_on():
    spans = [(0.0, 0.2), (0.4, 0.6), (0.8, 1.3), (1.8, 2.3)]

    assert square_waves([(0.4, 2), (1.0, 2)]) == [pytest.approx(span) for span in spans]


class Declined(Exception):
    pass


class Nvml:
    """Plays the binding: a power that is new every 50 ms, and samples that the driver keeps."""

    NVMLError = NVMLError_NotFound = Declined

    def __init__(self, now=time.time):
        self.now = now

    def __getattr__(self, name):
        return 0 if name.startswith("NVML_") else lambda *_: 1

    def nvmlDeviceGetPowerUsage(self, handle):
        return 1000 * int(self.now() / 0.05)

    def nvmlDeviceGetMarginTemperature(self, handle):
        raise Declined("Not Supported")

    def nvmlDeviceGetSamples(self, handle, kind, since_us):
        now_us = int(1e6 * self.now())
        first_us = max(since_us, now_us - 2_400_000)
        found = [
            SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=500_000))
            for at in range(first_us - first_us % 20_000, now_us, 20_000)
        ]
        return kind, found[::-1]


class Clock:
    """A clock, and the event that ends after four of its seconds, so that no machine is slow."""

    def __init__(self):
        self.now_s = 1000.0

    def time(self):
        self.now_s += 0.0001
        return self.now_s

    def wait(self, timeout_s):
        self.now_s += timeout_s
        return self.now_s > 1004.0


def test_what_calls_cost_is_told_of_declined_ones_too():
    calls = readings.nvml_readings(Nvml(), ["one", "other"])
    costs = {name: readings.cost_of(Nvml(), call, 2) for name, call in calls.items()}

    assert costs["power"].calls >= 3
    assert costs["power"].wall_p99_us >= costs["power"].wall_p50_us > 0
    declined = {name: cost.declined for name, cost in costs.items() if cost.declined}
    assert declined == {"margin to slowdown": "Not Supported"}


@pytest.mark.parametrize(("name", "period_s"), [("power", 0.05), (readings.SAMPLES, 0.02)])
def test_every_change_is_seen_once_and_when_it_happened(name, period_s, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(readings, "time", clock)

    changes = readings.changes_of(Nvml(lambda: clock.now_s), name, "handle", clock)

    times = [at for at, _ in changes]
    assert times[0] == pytest.approx(1000.0 + period_s, abs=period_s / 10)
    assert np.diff(times) == pytest.approx(period_s, abs=0.002)
    assert len(times) == pytest.approx(4.0 / period_s, abs=3)
