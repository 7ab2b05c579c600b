"""Integrals over any span, from readings that were prepared once."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from workflow_lib.analysis import metrics
from workflow_lib.analysis.integrals import Integrals
from workflow_lib.analysis.metrics import Window

from .test_metrics import recording  # noqa: F401  (a fixture)

#: GPU 0: 0 to 10 over a second, then 10 for two. GPU 1: 5 throughout, its temperature read once.
SAMPLES = pl.DataFrame(
    {
        "sensor": [0, 0, 0, 1, 1],
        "unix_time_s": [100.0, 101.0, 103.0, 100.0, 101.0],
        "power": [0.0, 10.0, 10.0, 5.0, 5.0],
        "heat": [50.0, None, 56.0, None, 60.0],
    }
)


def prepared() -> Integrals:
    return Integrals(SAMPLES, {"power": pl.col("power"), "heat": pl.col("heat")})


def integral(of: Integrals, quantity: str, gpu: int, start: float, end: float) -> float | None:
    """Over one span, in s after 100."""
    (found,) = of.over(quantity, np.array([gpu]), np.array([100 + start]), np.array([100 + end]))
    return None if np.isnan(found) else float(found)


@pytest.mark.parametrize(
    ("gpu", "start", "end", "power", "heat"),
    [
        (0, 0.0, 2.0, 15.0, 104.0),
        (0, 0.0, 0.5, 1.25, 25.25),
        (0, 0.5, 3.0, 23.75, 133.75),
        (1, 0.0, 1.0, 5.0, None),
        (1, 0.25, 0.25, 0.0, None),
        # Before the first reading, after the last, and of a GPU without any, nothing is known.
        (0, 2.0, 3.5, None, None),
        (0, -1.0, 1.0, None, None),
        (1, -0.5, 1.0, None, None),
        (2, 0.0, 1.0, None, None),
    ],
)
def test_the_integral_over_a_span_is_that_of_the_straight_lines(gpu, start, end, power, heat):
    assert integral(prepared(), "power", gpu, start, end) == power
    assert integral(prepared(), "heat", gpu, start, end) == heat


def test_what_was_never_read_has_no_integral_and_no_look():
    nothing = Integrals(SAMPLES.with_columns(heat=None), {"heat": pl.col("heat")})
    assert integral(nothing, "heat", 0, 0.0, 1.0) is None
    assert nothing.edges("heat") == {}
    assert nothing.looks(Window(100.0, 101.0)) == {"heat": {}}


def test_holes_are_where_nothing_was_read_for_too_long():
    assert prepared().holes("power", 1.5) == [(0, 101.0, 103.0)]
    assert prepared().holes("heat", 1.5) == [(0, 100.0, 103.0)]


def test_looks_are_those_of_one_window_over_a_real_recording(
    recording,  # noqa: F811
):
    began = recording["unix_time_s"][0]
    window = Window(began + 10.03, began + 41.77)
    quantities = {name: pl.col(name) for name in ("power_w", "temperature_c")}
    by_gpu = recording.rename({"gpu": "sensor"}).sort("sensor", maintain_order=True)
    looks = Integrals(by_gpu, quantities).looks(window)
    # A double tells times of day to 0.2 µs.
    for name in quantities:
        for gpu, figures in metrics.over_window(recording, name, window).items():
            expected: dict[str, Any] = {key: figures[key] for key in looks[name][gpu]}
            assert looks[name][gpu] == pytest.approx(expected, rel=1e-8)


def test_a_mean_since_the_reading_before_holds_for_the_whole_time_since_then():
    # 10 over the first second, 4 over the next two; the first reading of all has no time.
    samples = SAMPLES.filter(sensor=0).with_columns(busy=pl.Series([7.0, 10.0, 4.0]))
    means = Integrals(samples, {"busy": pl.col("busy")}, means=("busy",))
    assert integral(means, "busy", 0, 0.0, 3.0) == 18.0
    assert integral(means, "busy", 0, 0.5, 2.0) == 9.0
    window = Window(100.5, 102.0)
    assert means.looks(window)["busy"][0]["integral"] == 9.0
    of_gpu = metrics.over_window(
        samples.rename({"sensor": "gpu"}), "busy", window, "mean_since_last"
    )
    assert of_gpu[0]["integral"] == 9.0
