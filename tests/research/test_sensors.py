"""A sensor's period and window are recovered from what it shows of a known load, and readings from
a library that answers as NVML does.
"""

import json
import time
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.measuring.parts import Log
from research import sensors_on_gpus
from research.measuring import readings, sensor_map
from research.measuring.load import Wave, square_waves
from research.measuring.sensor_response import fit_window, update_period
from research.pages import sensors
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

    median, low, high = update_period(seen)

    assert median == pytest.approx(period_s, abs=0.0005)
    assert low <= median <= high
    assert high - low < 0.002
    with pytest.raises(ValueError, match="too few"):
        update_period(seen[:3])


def test_waves_follow_one_another_half_of_each_period_on():
    spans = [(0.0, 0.2), (0.4, 0.6), (0.8, 1.3), (1.8, 2.3)]

    assert square_waves([Wave(0.4, 2), Wave(1.0, 2)]) == [pytest.approx(span) for span in spans]


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


def looks(wave, look_s, every_s, delay_s=0.004, start_s=100.0):
    """The edges of a wave of 200 and 600 W, and what looks of a length show of it, each at its end
    but for a delay."""
    begins = start_s + wave.period_s * np.arange(wave.count)
    ends = begins + wave.duty * wave.period_s
    grid = np.arange(start_s - 1, start_s + wave.duration_s + 1, 1e-4)
    phase = (grid - start_s) % wave.period_s
    working = (phase < wave.duty * wave.period_s) & (grid >= start_s) & (grid <= ends[-1])
    summed = np.concatenate(([0.0], np.cumsum(np.where(working, 600.0, 200.0))))
    times = np.arange(start_s, start_s + wave.duration_s, every_s)
    last = np.round((times - delay_s - grid[0]) / 1e-4).astype(int)
    length = round(look_s / 1e-4)
    return begins, ends, pairs(times, (summed[last] - summed[last - length]) / length)


def counted(wave):
    """What a counter says of the wave that looks all the time and is renewed every 0.1 s."""
    *_, often = looks(wave, 0.001, 0.001)
    times, watts = np.array(often).T
    return pairs(times[::100], np.cumsum(0.001 * watts)[::100])


def test_a_look_s_length_and_delay_are_recovered_from_a_wave_in_step():
    begins, ends, samples = looks(sensor_map.IN_STEP, 0.003, 0.02)

    look = sensor_map.fit_look(samples, begins, ends)

    assert look.length_s == pytest.approx(0.003, abs=0.0003)
    # Half of an edge is seen when it lies in the middle of the look.
    assert look.delay_s == pytest.approx(0.004 + 0.0015, abs=0.0003)
    assert (look.low_w, look.high_w) == (pytest.approx(200, abs=4), pytest.approx(600, abs=4))
    with pytest.raises(ValueError, match="too few"):
        sensor_map.fit_look(samples[:50], begins, ends)


@pytest.mark.parametrize(
    ("ratio", "largest"),
    [
        # A look sees the high or the low power.
        ("1", 0.5),
        # Looks see five phases: three of them high, or two.
        ("5", 0.1),
        # Two looks a period see one state each, whatever the phase.
        ("2", 0.0),
    ],
)
def test_stretches_of_a_wave_in_step_are_off_by_what_their_looks_miss(ratio, largest):
    wave = sensor_map.in_step(Fraction(ratio))
    *_, samples = looks(wave, 0.001, 0.02)
    end_s = 100.0 + wave.duration_s
    span = end_s - sensor_map.TURN_S, end_s

    off = sensor_map.errors(readings.SAMPLES, samples, counted(wave), *span)

    # Seconds overlap, so the turn's first and last count less.
    assert off.mean == pytest.approx(0, abs=0.05)
    # A stretch lasts a thirteenth of the turn, so the edges are within some of them.
    assert (off.low, off.high) == (
        pytest.approx(-largest, abs=0.03),
        pytest.approx(largest, abs=0.03),
    )
    # A reading of a second is their mean.
    times, watts = np.array(samples).T
    a_second = pairs(times[50:], np.convolve(watts, np.ones(50) / 50, "valid")[1:])
    of_power = sensor_map.errors(readings.POWER, a_second, counted(wave), *span)
    assert (of_power.low, of_power.high) == (
        pytest.approx(off.low, abs=0.03),
        pytest.approx(off.high, abs=0.03),
    )


def test_a_load_that_moves_by_itself_puts_no_reading_off():
    """Its power rises by a half: samples out of step follow, and the counter's seconds show it."""
    times = np.arange(100.0, 114.0, 0.0173)
    watts = np.linspace(400, 600, len(times))
    samples, joules = pairs(times, watts), np.cumsum(np.append(0, np.diff(times)) * watts)
    counter = pairs(times[::6], joules[::6])

    off = sensor_map.errors(readings.SAMPLES, samples, counter, 101.0, 114.0)
    own = sensor_map.errors(readings.ENERGY, counter, counter, 101.0, 114.0)

    assert max(-off.low, off.high) < 0.005
    # Of the means of the seconds before 102 s to 114 s, the middle 95 %.
    assert (own.low, own.high) == (pytest.approx(-0.16, abs=0.01), pytest.approx(0.16, abs=0.01))
    with pytest.raises(ValueError, match="too few"):
        sensor_map.errors(readings.SAMPLES, samples, counter[:12], 101.0, 114.0)


def test_a_counter_that_looks_often_is_right_to_its_times():
    wave = sensor_map.in_step(Fraction(5))
    times, joules = np.array(counted(wave)).T
    # Its moments are known to 2 ms.
    counter = pairs(times + np.random.default_rng(2).uniform(0, 0.002, len(times)), joules)

    off = sensor_map.errors(readings.ENERGY, counter, counter, 100.5, 113.5)
    by_length = sensor_map.scatter_by_length(counter, 100.5, 113.5)

    assert max(abs(off.low), abs(off.high)) < 0.003
    assert by_length[0.2] > by_length[1.0] > by_length[5.0]
    assert by_length[1.0] < 0.003


def test_a_reading_that_is_off_in_step_is_told_by_waves_on_both_sides():
    turn = sensor_map.COUNTER_TURNS[0]
    assert [wave.duty for wave in turn] == [1.0, *6 * [0.25]]
    counter, samples, start_s, joules = [], [], 100.0, 0.0
    for place, wave in enumerate(turn):
        # The load drifts by 1 % a wave, and in step samples read 7 % too little.
        watts = 400.0 * (1 + 0.01 * place)
        for at in np.arange(start_s, start_s + wave.duration_s, 0.1):
            counter.append((at, joules))
            samples.append((at, watts * (0.93 if place in (2, 5) else 1.0)))
            joules += 0.1 * watts
        joules -= (at + 0.1 - start_s - wave.duration_s) * watts
        start_s += wave.duration_s
    changes = {readings.ENERGY: counter, readings.SAMPLES: samples}

    found = sensor_map.bracket(turn, changes, 100.0)

    assert found.wave == turn[2] == turn[5]
    for name, off in ((readings.ENERGY, 0.0), (readings.SAMPLES, -0.07)):
        there, back = found.in_step[name]
        # The second and the fifth of six.
        assert there.mean == pytest.approx((1 + off) * 1.02 / 1.035 - 1, abs=0.001)
        assert (there.mean + back.mean) / 2 == pytest.approx(off, abs=0.001)
    # Of the waves out of step, the first, third, fourth and sixth.
    assert found.mean_w == pytest.approx(400 * 1.035, rel=0.001)
    assert found.apart[readings.SAMPLES].low == pytest.approx(1.01 / 1.035 - 1, abs=0.001)
    with pytest.raises(ValueError, match="too few"):
        sensor_map.bracket(turn, changes | {readings.SAMPLES: samples[:100]}, 100.0)


def test_waves_in_step_turn_once_through_the_phases_of_the_looks():
    for ratio, turn_s in (("1", 0.02), ("1/5", 0.004), ("5/4", 0.005), ("20", 0.02)):
        wave = sensor_map.in_step(Fraction(ratio))
        slid_s = sensor_map.TURN_S / wave.period_s * (wave.period_s - 0.02 * float(Fraction(ratio)))
        assert slid_s == pytest.approx(turn_s, rel=0.01)


def test_the_map_of_a_sensor_that_looks_every_20_ms_shows_where_it_is_wrong(monkeypatch, tmp_path):
    def seen(waves, *_):
        changes, edges, start_s = {readings.SAMPLES: [], readings.ENERGY: []}, [], 100.0
        joules = 0.0
        for wave in waves:
            begins, ends, samples = looks(wave, 0.001, 0.02, start_s=start_s)
            edges += [edge for span in zip(begins, ends, strict=True) for edge in span]
            changes[readings.SAMPLES] += samples
            *_, often = looks(wave, 0.001, 0.001, start_s=start_s)
            for place, (at, watts) in enumerate(often):
                joules += 0.001 * watts
                if place % 100 == 0:
                    changes[readings.ENERGY].append((at, joules))
            start_s += wave.duration_s
        for name in (readings.POWER, readings.MOMENTARY):
            changes[name] = changes[readings.SAMPLES][::5]
        of_gpu = {(name, 0): pairs_of for name, pairs_of in changes.items()}
        return sensors_on_gpus.Seen(of_gpu, 100.0, [list(map(float, edges))])

    monkeypatch.setattr(readings, "open_handles", lambda: (None, []))
    benchmark = sensors_on_gpus.Benchmark(1, Log(tmp_path / "sensors.jsonl"))
    monkeypatch.setattr(benchmark, "_seen", seen)

    benchmark.map()

    # What is kept is enough for the page.
    records = {"gpus": [], "map-edges": [], "map-raw": []}
    for row in map(json.loads, (tmp_path / "sensors.jsonl").open()):
        records.setdefault(row["part"], []).append(row)
    rows = list(sensors._map(records))
    assert [row.wave for row in rows] == [wave for turn in sensor_map.TURNS for wave in turn]
    of_samples = {
        round(1e3 * row.wave.period_s, 1): row.errors[readings.SAMPLES]
        for row in rows
        if row.wave.duty == 0.5
    }
    # Looks see m phases of a period of m/n looks, and half of an odd number is no whole one.
    assert {period for period, off in of_samples.items() if off.high > 0.05} == {
        *(2.0, 2.5, 4.0, 5.0, 6.7, 10.0, 15.0, 20.0, 25.0, 30.0, 50.0, 60.1, 100.2)
    }
    assert sensors._look(records).length_s == pytest.approx(0.001, abs=0.0003)
