"""A run's GPUs over time."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.tables import SERIES, SERIES_POINTS
from workflow_lib.table_files import read_table

from .synthetic_run import Run, keeping, setting, summary


def series(tmp_path: Path, run: Run) -> pl.DataFrame:
    paths = run.write(tmp_path / "run1")
    summary(paths)
    return read_table(paths.series, SERIES)


def test_each_interval_has_the_mean_of_its_readings(tmp_path):
    # Steps from 10 to 40 s, read twice a second: thirty intervals of two readings each.
    found = series(tmp_path, Run())
    assert found.height == 2 * 30
    first = found.row(0, named=True)
    assert first == {
        "cell": "made-up/tiny/tp1-pp1-dp2_mb1-gb4-bf16-zero1_01234567",
        "run": 1,
        "node": "node1",
        "gpu": 0,
        "airflow": "front",
        "elapsed_s": -9.5,
        "interval_s": 1.0,
        "power_w": 400.0,
        "temperature_c": 50.0,
        "sm_clock_mhz": 1500.0,
        "power_capped_share": 1.0,
        "thermally_slowed_share": 0.0,
        "power_braked_share": 0.0,
    }
    # At 25 s, 5 s after the first measured step began, one of two readings is 5 °C higher.
    warm = found.filter((pl.col("elapsed_s") == 5.5) & (pl.col("gpu") == 1)).row(0, named=True)
    assert (warm["temperature_c"], warm["power_w"], warm["airflow"]) == (62.5, 600.0, "rear")
    assert found["elapsed_s"].max() == 19.5


def test_a_gpu_has_at_most_150_points(tmp_path):
    found = series(tmp_path, Run(period_s=0.0625))
    assert found.group_by("gpu").len()["len"].to_list() == [SERIES_POINTS] * 2
    assert found["interval_s"][0] == pytest.approx(0.2)


def test_what_was_not_read_is_null_and_an_interval_without_readings_has_no_row(tmp_path):
    kept = keeping(lambda at_s, gpu: not 30 <= at_s < 32)
    unread = setting(lambda at_s, gpu: at_s < 21, power_w=None)
    found = series(tmp_path, Run(edit=lambda row: kept(unread(row)))).filter(pl.col("gpu") == 0)
    assert found.height == 28
    powers = dict(found.select("elapsed_s", "power_w").iter_rows())
    assert (powers[-0.5], powers[0.5], powers[1.5]) == (None, None, 400.0)
    assert 10.5 not in powers
    assert found["temperature_c"].null_count() == 0


def test_without_telemetry_or_a_result_there_are_no_rows(tmp_path):
    assert series(tmp_path / "invalid", Run(outcome=Outcome.TELEMETRY_INVALID)).height == 0
    paths = Run().write(tmp_path / "run1")
    paths.telemetry_start("node1").unlink()
    summary(paths)
    assert read_table(paths.series, SERIES).height == 0
