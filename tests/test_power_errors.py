"""By how much steps in step with the looks of a sensor put an energy off, by hand."""

from __future__ import annotations

import math

import pytest

from workflow_lib.power_errors import in_step_share

#: looks of 20 ms that see 200 and 600 W in turn: a swing as large as the mean
LOOKS = [(tick / 50, 200.0 if tick % 2 else 600.0) for tick in range(500)]


def ends(step_s: float, count: int) -> list[float]:
    return [1_764_500_000.007 + step * step_s for step in range(count)]


def test_five_looks_a_step_have_a_fifth_of_what_one_has():
    assert in_step_share(LOOKS, 0.1, ends(0.1, 90)) == pytest.approx(0.2 / 5, rel=1e-4)
    # Where ends are not known, they may be in step.
    assert in_step_share(LOOKS, 0.1) == pytest.approx(0.2 / 5)


def test_steps_that_go_through_all_phases_are_not_in_step():
    # 93 ms are 4.65 looks; 20 steps are 93 whole ones.
    assert in_step_share(LOOKS, 0.093, ends(0.093, 100)) < 1e-4


def test_a_slow_drift_is_no_way_out():
    # 0.1 ms a step: half a look in 10 s, whose unit vectors have a mean of 2/π.
    share = in_step_share(LOOKS, 0.1001, ends(0.1001, 1000))
    assert share == pytest.approx(0.2 * 20 / 100.1 * 2 / math.pi, rel=0.01)


@pytest.mark.parametrize("apart_s", [0.1, 0.002])
def test_of_looks_of_another_pace_nothing_is_said(apart_s):
    samples = [(tick * apart_s, watts) for tick, (_, watts) in enumerate(LOOKS)]
    assert in_step_share(samples, 0.1) == 0
    assert in_step_share([], 0.1) == 0


def test_without_steps_or_power_nothing_is_divided():
    dark = [(at, 0.0) for at, _ in LOOKS]
    assert in_step_share(dark, 0.1) == in_step_share(LOOKS, 0.0, ends(0.0, 9)) == 0


def test_single_samples_are_no_swing():
    steady = [(at, 950.0 if tick % 50 == 0 else 400.0) for tick, (at, _) in enumerate(LOOKS)]
    assert in_step_share(steady, 0.1) == 0
