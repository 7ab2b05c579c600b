"""Whether a run was steady: series whose drift was made by hand, and simulated ones."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from workflow_lib.analysis.steady_state import (
    STEP_TIME_TOLERANCE,
    TEMPERATURE_TOLERANCE_C,
    Drift,
    Series,
    blocks_of,
    drift,
)
from workflow_lib.intervals.change import Estimate

from .synthetic_run import Edit, Run, assert_null, cell, setting, summary, write_steps


def step_time(values: list[float]) -> Series:
    return Series(values, tolerance=STEP_TIME_TOLERANCE, relative=True)


def temperature(values: list[float]) -> Series:
    return Series(values, tolerance=TEMPERATURE_TOLERANCE_C, relative=False)


@pytest.mark.parametrize(
    ("series", "change", "steady"),
    [
        (step_time([2.0] * 20), 0, True),
        # Over the whole length, and a share of the mean: from 1.00 to 1.10, of a mean of 1.05.
        (step_time([1 + 0.01 * i for i in range(11)]), 0.10 / 1.05, False),
        (temperature([60.0 - i for i in range(11)]), -10, False),
        # Certain, but so small that it does not matter.
        (step_time([1 + 0.0002 * i for i in range(20)]), 0.0038 / 1.0019, True),
        # An arch, whose ends are alike.
        (step_time([1 + 0.1 * math.sin(math.pi * i / 19) for i in range(20)]), 0, False),
    ],
)
def test_a_drift_is_of_the_whole_length(series, change, steady):
    found = drift(series)
    assert found is not None
    assert found.trend.change == pytest.approx(change, abs=1e-9)
    assert found.steady is steady


@pytest.mark.parametrize(
    ("change", "margin", "steady"),
    [
        (0.004, 0.0005, True),
        (0.0, 0.087, None),  # "within ±8.7 %" was called steady
        (0.004, 0.002, None),
        (-0.006, 0.002, None),  # above the bound, and not surely
        (-0.006, 0.0005, False),
        (0.02, 0.002, False),
    ],
)
def test_a_run_is_steady_where_the_whole_interval_is_within_the_bound(change, margin, steady):
    nothing = Estimate(0.0, 0.0)
    found = Drift(Estimate(change, margin), nothing, nothing, STEP_TIME_TOLERANCE)
    assert found.steady is steady
    assert Drift(nothing, Estimate(change, margin), nothing, STEP_TIME_TOLERANCE).steady is steady


def test_nine_values_are_too_few():
    assert drift(step_time([1.0] * 9)) is None
    assert drift(step_time([0.0] * 10)) is None


def steps(count: int, duration_s: float) -> pl.DataFrame:
    """Steps of two ranks without a pause; the second rank starts and ends 10 % of a step later."""
    return pl.DataFrame(
        [
            {
                "step": step,
                "started_unix_s": 100 + (step + late) * duration_s,
                "ended_unix_s": 100 + (step + late + 0.9) * duration_s,
            }
            for step in range(count)
            for late in (0.0, 0.1)
        ]
    )


@pytest.mark.parametrize(
    ("count", "duration_s", "rate_hz", "first_steps"),
    [
        # One step where steps are long.
        (4, 2.0, 10.0, [0, 1, 2, 3]),
        # A second: four steps. The first steps are left over: 22 = 2 + 5·4.
        (22, 0.3, 10.0, [2, 6, 10, 14, 18]),
        # Two sample periods: 4 s.
        (12, 1.01, 0.5, [0, 4, 8]),
        # No more than 200.
        (10_000, 1.5, 10.0, list(range(0, 10_000, 50))),
        (0, 1.0, 10.0, []),
    ],
)
def test_blocks_are_of_as_many_steps_as_they_need(count, duration_s, rate_hz, first_steps):
    blocks = blocks_of(steps(max(count, 1), duration_s).head(2 * count), rate_hz)
    assert [block.first_step for block in blocks] == first_steps
    for block, end in zip(blocks, [*first_steps, count][1:], strict=True):
        assert block.window.start_unix_s == pytest.approx(100 + block.first_step * duration_s)
        assert block.window.end_unix_s == pytest.approx(100 + end * duration_s)
        assert block.step_time_s == pytest.approx(duration_s)


def reduced(
    directory: Path, durations_s: Sequence[float], edit: Edit = lambda row: row
) -> dict[str, Any]:
    """The row of a run with a step of warm-up and then such steps, from 10 to 40 s, whose GPUs draw
    400 and 600 W throughout."""
    of_steps = cell(measured_steps=len(durations_s) - 1)
    paths = Run(cell=of_steps, edit=edit).write(directory / "run1")
    edges = [10.0, *(10 + after_s for after_s in itertools.accumulate(durations_s))]
    write_steps(paths, list(itertools.pairwise(edges)), warmup_steps=1)
    row: dict[str, Any] = summary(paths)["run"]
    return row


#: a step of warm-up, and thirteen of 2 s
EVEN = (4.0, *(2.0,) * 13)


@pytest.mark.parametrize(
    ("durations_s", "edit", "steady", "figures"),
    [
        (EVEN, setting(temperature_c=60.0), True,
         {"counted_steps": 13, "measured_duration_s": pytest.approx(26)} | dict.fromkeys(
             ("step_time_drift", "step_time_drift_margin", "power_drift", "power_drift_margin"),
             pytest.approx(0, abs=1e-6))),
        # Two warm-up steps too few: from 3 s to 2 s. The line through them has a slope of −10/143 s
        # a step, over eleven steps, and their mean is 26/12 s.
        ((4.0, 3.0, 3.0, *(2.0,) * 10), lambda row: row, False,
         {"counted_steps": 12,
          "step_time_drift": pytest.approx(-10 / 143 * 11 / (26 / 12), abs=1e-6)}),
        # From the middle of the first step to that of the last, 24 s at 1 °C/s.
        (EVEN, setting(temperature_c=lambda at_s: 30 + at_s), False,
         {"temperature_drift_c": pytest.approx(24, abs=0.1)}),
    ],
)  # fmt: skip
def test_all_measured_steps_count(tmp_path, durations_s, edit, steady, figures):
    row = reduced(tmp_path, durations_s, edit)
    assert row["steady"] is steady
    for name, value in figures.items():
        assert row[name] == value, name


def test_drifts_are_rounded_to_what_they_mean(tmp_path):
    row = reduced(tmp_path, [4.0, *(2 + 0.013 * math.sin(step) for step in range(13))])
    drifts = {name: value for name, value in row.items() if "_drift" in name}
    assert len(drifts) == 6
    assert drifts == {name: round(value, 6) for name, value in drifts.items()}
    assert 0 not in (drifts["step_time_drift"], drifts["temperature_drift_c"])
    # Of steady power the noise of the last digits is left, and its sign is none.
    assert str(drifts["power_drift"]) == "0.0"


@pytest.mark.parametrize(
    ("edit", "code", "values"),
    [
        # The temperatures of the synthetic run go up and down by degrees.
        (lambda row: row, "drift_within_noise", ("temperature",)),
        (setting(temperature_c=None), "not_read_in_steps", ("node1", "temperature_c")),
    ],
)
def test_what_is_not_told_of_temperatures_is_not_called_steady(tmp_path, edit, code, values):
    row = reduced(tmp_path, EVEN, edit)
    assert_null(row, "steady", code, *values)
    assert row["power_drift"] == pytest.approx(0, abs=1e-6)


def test_power_that_is_0_throughout_has_no_share_that_drifts(tmp_path):
    row = reduced(tmp_path, EVEN, setting(temperature_c=60.0, power_w=0.0))
    for name in ("power_drift", "power_drift_margin", "steady"):
        assert_null(row, name, "mean_is_zero")
    assert row["step_time_drift"] == pytest.approx(0, abs=1e-6)


def test_few_blocks_are_no_mean_of_zero(tmp_path):
    row = reduced(tmp_path, EVEN[:10], setting(power_w=0.0))
    for name in ("step_time_drift", "power_drift", "temperature_drift_c", "steady"):
        assert_null(row, name, "too_few_blocks")


def verdicts(
    count: int, noise: float, trend: float = 0.0, autocorrelation: float = 0.0, trials: int = 400
) -> dict[bool | None, float]:
    """The shares of simulated runs of so many blocks that are called steady, not steady and not
    told, by three quantities: each has such noise, normal and correlated with the last block's, and
    the first has the trend, a share over all blocks."""
    chance, line, settled = np.random.default_rng(11), np.linspace(-0.5, 0.5, count), 50
    found: Counter[bool | None] = Counter()
    for _ in range(trials):
        values = chance.normal(0, noise, (3, settled + count))
        for block in range(1, settled + count):
            values[:, block] += autocorrelation * values[:, block - 1]
        values = 1 + values[:, settled:]
        values[0] += trend * line
        drifts = [drift(step_time(each.tolist())) for each in values]
        each = [one.steady for one in drifts if one is not None]
        found[False if False in each else True if all(each) else None] += 1
    return {verdict: found[verdict] / trials for verdict in (True, False, None)}


def test_neither_verdict_is_wrong_more_often_than_stated():
    # Noise alone is not called a drift; a drift of the whole bound is not called steady.
    assert verdicts(20, 0.03)[False] <= 0.05
    assert verdicts(20, 0.002)[False] <= 0.05
    assert verdicts(20, 0.0006, trend=STEP_TIME_TOLERANCE)[True] <= 0.05
    # What noise hides is not told, which was called steady: a drift of 2 % under a noise of 3 %.
    assert verdicts(20, 0.03, trend=0.02)[None] >= 0.9
    # What it does not hide is.
    assert verdicts(20, 0.0009, trend=0.01)[False] >= 0.9
    assert verdicts(20, 0.0007)[True] >= 0.9
    assert verdicts(12, 0.003, trend=0.003 * 11)[False] >= 0.95


#: docs/explanation/measurement.md: blocks; wrong noes and yeses at autocorrelations of 0, 0.3 and
#: 0.5; the noise with which 90 % of runs are told, that drift by 1 % and that do not drift
STATED = [
    (12, (0.004, 0.018, 0.037), (0.0, 0.003, 0.006), 0.0006, 0.0005),
    (20, (0.004, 0.013, 0.030), (0.003, 0.004, 0.008), 0.0009, 0.0007),
    (40, (0.003, 0.007, 0.013), (0.0, 0.0, 0.001), 0.0017, 0.0013),
    (100, (0.001, 0.003, 0.004), (0.002, 0.001, 0.001), 0.0032, 0.0025),
]


@pytest.mark.long
@pytest.mark.parametrize(("count", "noes", "yeses", "for_no", "for_yes"), STATED)
def test_the_table_of_error_rates_holds(count, noes, yeses, for_no, for_yes):
    def most(stated: float) -> float:
        """Three standard errors of 600 trials, and the stated rate's own, of at least one run."""
        least = max(stated, 1 / 1200)
        return stated + 3 * math.sqrt(least * (1 / 600 + 1 / 1200))

    for autocorrelation, no, yes in zip((0.0, 0.3, 0.5), noes, yeses, strict=True):
        assert verdicts(count, 0.03, 0.0, autocorrelation, 600)[False] <= most(no)
        bound = verdicts(count, 0.0006, STEP_TIME_TOLERANCE, autocorrelation, 600)
        assert bound[True] <= most(yes)
    least = 0.9 - 3 * math.sqrt(0.9 * 0.1 / 600)
    assert verdicts(count, for_no, 0.01, 0.0, 600)[False] >= least
    assert verdicts(count, for_yes, 0.0, 0.0, 600)[True] >= least
