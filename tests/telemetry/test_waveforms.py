"""Energies of loads whose energy is known, through an NVIDIA GPU's sensors.

The load is a function of time with an exact integral; the library that plays NVML shows it as a
sensor does: its mean over a window, anew every 100 ms.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest

from tests.telemetry.cells import make_cell
from tests.telemetry.nvml import Node, Played
from workflow_lib.telemetry.devices.nvidia import NvidiaSource

#: 100 W in the first half of each period, 700 W in the second: 400 W in the mean
SQUARE = "square 100000 700000 {period_s}"
SENSOR_PERIOD_S = 0.1
DURATION_S = 60.0
#: the first reading; the sensor's latest value is then 30 ms old, and at every other one as well
FIRST_S = 10.03


def trapezoid(points: Sequence[tuple[float, float]]) -> float:
    """J, from times in s and powers in W."""
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in itertools.pairwise(points))


def readings(source: NvidiaSource, played: Played) -> tuple[list[tuple[float, float]], float]:
    """Time and power at 10 Hz over the duration, and the increase of the energy counter."""
    points, counters = [], []
    for tick in range(round(DURATION_S / SENSOR_PERIOD_S) + 1):
        since_epoch_s = FIRST_S + tick * SENSOR_PERIOD_S
        unix_s = played.set_time(since_epoch_s)
        power_w = source.read(0, unix_s)["power_w"]
        assert power_w is not None
        points.append((since_epoch_s, power_w))
        if tick in (0, round(DURATION_S / SENSOR_PERIOD_S)):
            energy_j = source.read_counters(0, unix_s, everything=True)["energy_j"]
            assert energy_j is not None
            counters.append(energy_j)
    return points, counters[1] - counters[0]


@pytest.mark.parametrize("window_s", [0.025, 0.1, 1.0])
@pytest.mark.parametrize("slope_w_per_s", [5.0, -4.0])
def test_a_ramp_lags_by_half_the_window_and_the_age_of_the_reading(played, window_s, slope_w_per_s):
    # The mean over a window is the ramp's value in its middle, and it is 30 ms old when it is read.
    start_w = 300.0
    exact_j = start_w * DURATION_S + slope_w_per_s * ((FIRST_S + DURATION_S) ** 2 - FIRST_S**2) / 2
    lag_j = slope_w_per_s * (window_s / 2 + 0.03) * DURATION_S
    with played.source(
        power_0=f"ramp {start_w * 1e3} {slope_w_per_s * 1e3}",
        energy_0="integral 5e9",
        sensor_window=str(window_s),
        sensor_every=str(SENSOR_PERIOD_S),
    ) as source:
        points, counter_j = readings(source, played)
    assert trapezoid(points) == pytest.approx(exact_j - lag_j, abs=0.001 * DURATION_S)
    assert counter_j == pytest.approx(exact_j, abs=0.002)


@pytest.mark.parametrize("window_s", [0.025, 0.1, 1.0])
@pytest.mark.parametrize("frequency_hz", [0.1, 1.0, 10.0, 1000.0])
def test_a_square_wave_is_right_unless_sampled_in_phase(played, frequency_hz, window_s):
    """60 s are whole periods of each, so the exact energy is 400 W · 60 s.

    Windows of 0.1 s and 1 s leave no time unseen, and 25 ms are 25 periods at 1 kHz. At 0.1 and
    1 Hz, as many windows of 25 ms lie in the low half as in the high one. But at 10 Hz each of them
    lies before an edge from high to low, where the load is 700 W: the trapezoid is wrong by
    700/400, and that the counter disagrees is what gives it away.
    """
    shown_w = 700.0 if (frequency_hz, window_s) == (10.0, 0.025) else 400.0
    with played.source(
        power_0=SQUARE.format(period_s=1 / frequency_hz),
        energy_0="integral 5e9",
        sensor_window=str(window_s),
        sensor_every=str(SENSOR_PERIOD_S),
    ) as source:
        points, counter_j = readings(source, played)
    assert trapezoid(points) == pytest.approx(shown_w * DURATION_S, rel=2e-5)
    assert counter_j == pytest.approx(400.0 * DURATION_S, rel=2e-5)


def test_the_samplers_files_hold_what_the_load_was(tmp_path, nvml_library, sampler):
    """In real time, so only what no delay of this machine can change is asked for."""
    node = Node(tmp_path, nvml_library, sampler)
    epoch_s = time.time() - 10
    node.say(
        epoch=repr(epoch_s),
        energy="integral 5e9",
        power_0="ramp 100000 5000",
        sensor_window="0.1",
        sensor_every="0.1",
    )
    node.sample(make_cell(source="nvidia", rate_hz=10), seconds=5.5)

    points = [
        (float(row["unix_time_s"]) - epoch_s, float(row["power_w"]))
        for row in node.rows
        if row["gpu"] == "0"
    ]
    # The mean of 100 ms, at most another 100 ms old, is at most 150 ms behind; on average 100 ms.
    first_s, last_s = points[0][0], points[-1][0]
    exact_j = 100.0 * (last_s - first_s) + 5.0 * (last_s**2 - first_s**2) / 2
    behind_s = (exact_j - trapezoid(points)) / (5.0 * (last_s - first_s))
    assert 0.05 <= behind_s <= 0.16

    # The counter is of the moment that it was read in: just after the row's time, or within its age
    # before that. It changes all the time here, so that the second call finds it changed.
    counted = [row for row in node.counters if row["gpu"] == "0" and row["energy_j"]]
    changes = [row for row in counted if row["energy_age_s"]]
    assert changes
    assert len(counted) == len(changes) + 2
    for row in counted:
        at_s, age_s = float(row["unix_time_s"]) - epoch_s, float(row["energy_age_s"] or 0)
        late_s = 0.0 if age_s else float(row["read_cost_s"]) + 1e-5
        earliest, latest = (
            5e6 + 100 * moment + 5 * moment**2 / 2 for moment in (at_s - age_s, at_s + late_s)
        )
        assert age_s == 0 or age_s >= 0.01
        assert earliest - 0.002 <= float(row["energy_j"]) <= latest + 0.002
