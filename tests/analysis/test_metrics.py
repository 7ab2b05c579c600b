"""The formulas, on traces and numbers whose answers were worked out by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import polars as pl
import pytest

from workflow_lib.analysis import metrics, run_row
from workflow_lib.analysis.metrics import Window

RECORDING = Path(__file__).parents[1] / "data" / "h200x8_gemm_allreduce.csv"
#: what the GPUs' energy counters say of the recording, in J; from the README beside it
COUNTERS_J = (35947.7, 36038.2, 36042.2, 36031.5, 35945.6, 35924.8, 35995.8, 35997.7)


@pytest.mark.parametrize(
    ("times", "values", "window", "expected"),
    [
        # Constant power integrates to power times time.
        ([0.0, 1.0, 2.5, 4.0], [300.0] * 4, (0.5, 3.5), {"integral": 900}),
        # v(t) = 100·t, read at 0, 4 and 10; the integral from 1 to 6 is 50·(36 − 1).
        ([0.0, 4.0, 10.0], [0.0, 400.0, 1000.0], (1.0, 6.0), {"integral": 1750, "increase": 500}),
        # v from 0 to 100 over 10 s: between 4 and 6 its mean is 50. No reading lies within.
        ([0.0, 10.0], [0.0, 100.0], (4.0, 6.0), {"integral": 100, "readings": 0, "peak": None}),
        # Up 200 for a second, down to 0 for a second, with the edges taking no time (1 ns).
        ([0.0, 1.0, 1.0 + 1e-9, 2.0, 2.0 + 1e-9, 3.0, 3.0 + 1e-9, 4.0],
         [200.0, 200.0, 0.0, 0.0, 200.0, 200.0, 0.0, 0.0], (0.0, 4.0), {"integral": 400}),
        # A missing reading is bridged, not taken as zero.
        ([0.0, 1.0, 2.0], [100.0, None, 100.0], (0.0, 2.0),
         {"integral": 200, "longest_gap_s": 2.0}),
        # Only readings within the window count for peak and number.
        ([0.0, 1.0, 2.0, 3.0], [900.0, 10.0, 20.0, 900.0], (0.5, 2.5), {"peak": 20, "readings": 2}),
        # Two readings at one moment add nothing.
        ([0.0, 1.0, 1.0, 2.0], [1.0, 1.0, 3.0, 3.0], (0.0, 2.0), {"integral": 4}),
        # A counter that falls within the window is noticed, and outside it is not.
        ([0.0, 1.0, 2.0, 3.0], [5.0, 0.0, 1.0, 2.0], (0.5, 2.0), {"falls": True}),
        ([0.0, 1.0, 2.0, 3.0], [5.0, 0.0, 1.0, 2.0], (1.0, 3.0), {"falls": False}),
    ],
)  # fmt: skip
def test_readings_over_a_window_lie_on_the_lines_between_them(times, values, window, expected):
    frame = pl.DataFrame({"gpu": 0, "unix_time_s": times, "value_read": values})
    found = metrics.over_window(frame, "value_read", Window(*window))[0]
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_gpus_are_kept_apart_however_their_samples_lie():
    frame = pl.DataFrame(
        {"gpu": [1, 0, 0, 1], "unix_time_s": [0.0, 0.1, 2.1, 2.0], "power": [10.0, 1.0, 1.0, 10.0]}
    )
    answer = metrics.over_window(frame, "power", Window(0.5, 1.5))
    assert [answer[gpu]["integral"] for gpu in (0, 1)] == pytest.approx([1.0, 10.0])


@pytest.fixture(scope="module")
def recording() -> pl.DataFrame:
    """Eight real GPUs for 65 s at 10 Hz."""
    with RECORDING.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return pl.DataFrame(
        {
            "gpu": [int(row["gpu"]) for row in rows],
            "unix_time_s": [float(row["unix_time_s"]) for row in rows],
            "power_w": [int(row["power_mw"]) / 1000 for row in rows],
            "temperature_c": [float(row["temperature_c"]) for row in rows],
            "event_reasons": [int(row["clocks_event_reasons"]) for row in rows],
        }
    )


def test_the_energy_of_a_real_recording_agrees_with_the_gpus_own_counters(recording):
    span = Window(recording["unix_time_s"][0], recording["unix_time_s"][-1])
    answer = metrics.over_window(recording, "power_w", span)
    assert [answer[gpu]["integral"] for gpu in range(8)] == pytest.approx(COUNTERS_J, rel=0.002)


@pytest.mark.parametrize(
    ("bits", "power", "thermal", "brake"),
    [
        (0x1, False, False, False),
        (0x4, True, False, False),
        (0x20, False, True, False),
        (0x40, False, True, False),
        (0x80, False, False, True),
        # Hardware slowdown: with the thermal bit it is heat, without it is power.
        (0x48, False, True, False),
        (0x8, False, False, True),
        (0x88, False, False, True),
        (0x4 | 0x20, True, True, False),
    ],
)
def test_event_bits_are_told_apart(bits, power, thermal, brake):
    frame = pl.DataFrame({"event_reasons": [bits]})
    expected = {"power_capped": power, "thermally_slowed": thermal, "power_braked": brake}
    assert frame.select(**metrics.EVENTS).to_dicts() == [expected]


def test_a_step_lasts_from_its_first_start_to_its_last_end():
    steps = pl.DataFrame(
        {
            "step": [1, 1, 2, 2],
            "started_unix_s": [10.0, 10.5, 20.0, 19.0],
            "ended_unix_s": [12.0, 13.0, 22.0, 21.0],
        }
    )
    assert metrics.step_times(steps) == [3.0, 3.0]


def test_quantiles_are_interpolated():
    assert metrics.median([4.0, 1.0, 2.0, 10.0]) == 3.0
    assert metrics.median([5.0]) == 5.0
    # Quartiles of 1, 2, 3, 4: 1.75 and 3.25.
    assert metrics.interquartile_range([4.0, 2.0, 3.0, 1.0]) == pytest.approx(1.5)


def test_mfu_of_a_published_run():
    # 10 682 tokens/s a GPU at 5.79e10 FLOPs a token is 618.5 TFLOP/s, 62.5 % of 989.4.
    utilisation, _ = run_row._utilisation(10_682, 5.79e10, (989.4e12, ""))
    assert utilisation == pytest.approx(0.625, abs=1e-3)
