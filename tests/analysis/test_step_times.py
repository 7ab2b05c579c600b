"""A run's steps, one row each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records import STEP_TIMES, Outcome
from workflow_lib.table_files import read_table

from .synthetic_run import Run, assert_null, cell, keeping, setting, summary

#: power of GPU 0 alone
OF_ONE = setting(lambda at_s, gpu: gpu == 1, power_w=None)


def steps(tmp_path: Path, run: Run, **without: int) -> list[dict[str, Any]]:
    """Reduce a run and return its steps; ``rank`` and ``step`` name a row that is not there."""
    paths = run.write(tmp_path / "run1")
    if without:
        path = paths.rank_steps(without["rank"])
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        del lines[1 + without["step"]]
        path.write_text("".join(lines), encoding="utf-8")
    reduce_run(paths.directory)
    return read_table(paths.step_times, STEP_TIMES).to_dicts()


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
    silent = Run(edit=OF_ONE)
    for row in steps(tmp_path, silent):
        for name in ("energy_j", "power_mean_w"):
            assert_null(row, name, "not_read_in_step", "node1 GPU 1")
        assert row["hottest_gpu"] == 1


def test_only_the_step_that_a_long_gap_reaches_into_is_null(tmp_path):
    gap = Run(edit=keeping(lambda at_s, gpu: not 21 < at_s < 28))
    _, first, last = steps(tmp_path, gap)
    assert (first["energy_j"], first["temperature_mean_c"], first["hottest_gpu"]) == (None,) * 3
    assert last["energy_j"] == pytest.approx(10_000.0)


def test_a_step_that_a_rank_did_not_record_is_null_not_smaller(tmp_path):
    warm_up, first, _ = steps(tmp_path, Run(), rank=1, step=0)
    for name in ("step_time_s", "tokens", "slowest_rank", "rank_spread_s", "energy_j"):
        assert_null(warm_up, name, "ranks_lack_step", "1 of 2")
    assert first["tokens"] == 64


def test_a_package_of_two_counts_once(tmp_path):
    package = Run(
        cell=cell(gpus_per_package=2),
        edit=OF_ONE,
    )
    assert steps(tmp_path, package)[1]["energy_j"] == pytest.approx(4000.0)


def test_a_node_without_telemetry_leaves_the_times_alone(tmp_path):
    paths = Run().write(tmp_path / "run1")
    paths.gpu_samples("node1").unlink()
    reduce_run(paths.directory)
    row = read_table(paths.step_times, STEP_TIMES).row(1, named=True)
    assert (row["step_time_s"], row["tokens"], row["energy_j"]) == (10.0, 64, None)
    assert_null(row, "hottest_c", "file_missing", "telemetry/node1.csv")


def test_a_run_whose_telemetry_is_invalid_keeps_its_steps_without_power(tmp_path):
    rows = steps(tmp_path, Run(outcome=Outcome.TELEMETRY_INVALID))
    assert [row["step_time_s"] for row in rows] == [10.0, 10.0, 10.0]
    for row in rows:
        assert_null(row, "energy_j", "telemetry_invalid")


def test_a_run_that_ran_out_of_memory_has_no_steps_but_the_table(tmp_path):
    assert steps(tmp_path, Run(outcome=Outcome.OUT_OF_MEMORY)) == []


def test_the_energies_of_the_counted_steps_add_up_to_the_runs(tmp_path):
    paths = Run().write(tmp_path / "run1")
    run = summary(paths)["run"]
    counted = read_table(paths.step_times, STEP_TIMES).filter(pl.col("counted"))
    assert counted["energy_j"].sum() == pytest.approx(run["energy_j"])
