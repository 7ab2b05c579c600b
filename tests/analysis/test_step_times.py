"""A run's steps, one row each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.tables import STEP_TIMES
from workflow_lib.table_files import read_table

from .synthetic_run import Run, assert_null, cell, keeping, setting, summary

#: power of GPU 0 alone
OF_ONE = setting(lambda at_s, gpu: gpu == 1, power_w=None)


def steps(
    tmp_path: Path, run: Run, damage: Callable[[RunPaths], None] = lambda paths: None
) -> list[dict[str, Any]]:
    """Write, damage and reduce a run; returns its steps, whose counted energies are the run's."""
    paths = run.write(tmp_path / "run1")
    damage(paths)
    row = summary(paths)["run"]
    found = read_table(paths.step_times, STEP_TIMES).to_dicts()
    energies = [step["energy_j"] for step in found if step["counted"]]
    if row["energy_j"] is not None:
        assert sum(energies) == pytest.approx(row["energy_j"])
    return found


def test_a_step_has_its_time_its_energy_and_its_heat(tmp_path):
    warm_up, first, last = steps(tmp_path, Run())
    # From 20 to 30 s: 400 W + 600 W; once 5 °C more for a sample, a triangle of 0.5 s either side.
    expected = {
        "cell": cell().id,
        "run": 1,
        "step": 1,
        "phase": "measured",
        "counted": True,
        "elapsed_s": 0.0,
        "step_time_s": 10.0,
        "slowest_rank": 1,
        "rank_spread_s": 1.0,
        "tokens": 64,
        "loss": 2.0,
        "memory_peak_bytes": 1100.0,
        "energy_j": pytest.approx(10_000.0),
        "power_mean_w": pytest.approx(1000.0),
        "temperature_mean_c": pytest.approx(55.25),
        "hottest_c": pytest.approx(60.25),
        "hottest_node": "node1",
        "hottest_gpu": 1,
        "sm_clock_mean_mhz": pytest.approx(1500.0),
        "missing_reasons": "{}",
        "missing_codes": "{}",
    }
    assert first == expected
    assert (warm_up["phase"], warm_up["counted"], warm_up["elapsed_s"]) == ("warmup", False, -10.0)
    assert (last["slowest_rank"], last["elapsed_s"], last["counted"]) == (0, 10.0, True)
    assert last["temperature_mean_c"] == pytest.approx(55.0)


def test_one_gpu_without_power_makes_the_energy_null_not_smaller(tmp_path):
    for row in steps(tmp_path, Run(edit=OF_ONE)):
        for name in ("energy_j", "power_mean_w"):
            assert_null(row, name, "not_read_in_step", "node1 GPU 1")
        assert row["hottest_gpu"] == 1


def test_only_the_step_that_a_long_gap_reaches_into_is_null(tmp_path):
    _, first, last = steps(tmp_path, Run(edit=keeping(lambda at_s, gpu: not 21 < at_s < 28)))
    assert (first["energy_j"], first["temperature_mean_c"], first["hottest_gpu"]) == (None,) * 3
    assert last["energy_j"] == pytest.approx(10_000.0)


def test_a_step_that_a_rank_did_not_record_is_null_not_smaller(tmp_path):
    def without_the_first(paths: RunPaths) -> None:
        lines = paths.rank_steps(1).read_text(encoding="utf-8").splitlines(keepends=True)
        paths.rank_steps(1).write_text("".join([lines[0], *lines[2:]]), encoding="utf-8")

    warm_up, first, _ = steps(tmp_path, Run(), without_the_first)
    for name in ("step_time_s", "tokens", "slowest_rank", "rank_spread_s", "energy_j"):
        assert_null(warm_up, name, "ranks_lack_step", "1 of 2")
    assert first["tokens"] == 64


def test_a_package_of_two_counts_once(tmp_path):
    package = Run(cell=cell(gpus_per_package=2), edit=OF_ONE)
    assert steps(tmp_path, package)[1]["energy_j"] == pytest.approx(4000.0)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(Outcome.COMPLETED, "file_missing"), (Outcome.TELEMETRY_INVALID, "telemetry_invalid")],
)
def test_without_telemetry_the_times_are_left_alone(tmp_path, outcome, code):
    run = Run(outcome=outcome)
    rows = steps(tmp_path, run, lambda paths: paths.gpu_samples("node1").unlink())
    for row in rows:
        assert (row["step_time_s"], row["tokens"]) == (10.0, 64)
        for name in ("energy_j", "hottest_c"):
            assert_null(row, name, code)


def test_a_run_that_ran_out_of_memory_has_no_steps_but_the_table(tmp_path):
    assert steps(tmp_path, Run(outcome=Outcome.OUT_OF_MEMORY)) == []
