"""What a platform's plan says of step times, and where these come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workflow_lib import cells, plan
from workflow_lib.projection.own import read_own
from workflow_lib.projection.planned import step_time
from workflow_lib.study import load_study

SWEEPS = cells.expand_study(load_study(Path("config")))


def planned(sweep, **wanted):
    """The first cell of a sweep whose training has what is wanted."""
    return next(
        each
        for each in SWEEPS[sweep].cells
        if each.feasible
        and all(getattr(each.cell.training, name) == value for name, value in wanted.items())
    )


def test_a_cell_that_was_measured_is_projected_to_what_it_took():
    for each in SWEEPS["evidence-llama3-8b-x2"].cells:
        time = step_time(each.cell)
        (run,) = (run for run in read_own() if run.cell.rpartition("_")[0] in each.cell.id)
        assert time.median_s == pytest.approx(run.step_time_s, rel=0.01)
        # Hosts of one kind differ by 1.1 %.
        assert time.low_s < time.median_s / 1.015
        assert time.high_s > time.median_s * 1.015


def test_what_no_run_says_anything_of_is_not_projected():
    assert step_time(planned("parallelism-h100").cell) is None
    assert step_time(planned("inference-h200", workload="inference").cell) is None
    assert step_time(planned("lora-h200", workload="lora").cell) is None
    assert step_time(planned("smoke-h200", precision="fp32").cell) is None


@pytest.mark.parametrize(
    "degrees", [{"dp": 1, "cp": 2}, {"pp": 2, "dp": 1, "schedule": "zero-bubble"}]
)
def test_nor_is_what_no_fitted_run_has(degrees):
    measured = SWEEPS["evidence-llama3-8b-x2"].cells[0].cell
    assert step_time(measured) is not None
    assert step_time(replace(measured, degrees=replace(measured.degrees, **degrees))) is None


def test_a_projected_plan_says_which_times_are(capsys):
    sweep, times = plan.with_projection(SWEEPS["smoke-h200"])
    assert times == {}
    text = plan.describe(plan.table([sweep]), times)
    assert "FLOPs at the platform's expected_mfu" in text
    sweep, times = plan.with_projection(SWEEPS["evidence-llama3-8b-x2"])
    text = plan.describe(plan.table([sweep]), times)
    assert "4 step times with intervals of 90 %: projected" in text
    assert "expected_mfu" not in text


def test_gpu_hours_follow_the_projected_time_and_time_limits_do_not():
    before = SWEEPS["evidence-llama3-8b-x2"].cells[0]
    after = plan.with_projection(SWEEPS["evidence-llama3-8b-x2"])[0].cells[0]
    steps = before.cell.training.warmup_steps + before.cell.training.measured_steps
    slower_s = after.estimate.step_time_s - before.estimate.step_time_s
    assert after.estimate.run_time_s == pytest.approx(before.estimate.run_time_s + steps * slower_s)
    assert after.estimate.time_limit_min == before.estimate.time_limit_min
