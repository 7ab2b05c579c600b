"""Where a run becomes steady: series whose onset was made by hand."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.analysis.steady_state import Series, blocks_of, drift, onset
from workflow_lib.records import STEPS

from .synthetic_run import START, Run, cell, write_csv


def step_time(values: list[float]) -> Series:
    return Series(values, tolerance=0.02, relative=True)


def temperature(values: list[float]) -> Series:
    return Series(values, tolerance=2.0, relative=False)


def test_a_constant_series_is_steady_from_its_first_value() -> None:
    assert onset([step_time([2.0] * 20)]) == 0


def test_slow_first_steps_are_left_out_however_few_they_are() -> None:
    # Medians over all twenty would not notice two outliers.
    assert onset([step_time([9.0, 3.0] + [1.0] * 18)]) == 2


def test_a_step_change_is_where_the_steady_state_begins() -> None:
    assert onset([step_time([1.5] * 30 + [1.0] * 20)]) == 30


def test_an_exponential_warm_up_ends_where_it_is_within_the_tolerance() -> None:
    # 60 − 25·e^(−i/10): 2 °C below 60 at i = 10·ln 12.5 = 25.3. The level of the rest lies a little
    # under 60, so that it may be a few values earlier.
    warming = [60 - 25 * math.exp(-i / 10) for i in range(100)]
    found = onset([temperature(warming)])
    assert found in (24, 25, 26)


def test_a_series_that_drifts_to_its_end_never_is_steady() -> None:
    # 1 % a step: any five of them change by 4 %.
    assert onset([step_time([1 + 0.01 * i for i in range(50)])]) is None


def test_a_drift_within_the_tolerance_is_steady() -> None:
    # 1.9 °C over all.
    assert onset([temperature([50 + 0.1 * i for i in range(20)])]) == 0


def test_a_slow_drift_is_steady_only_where_little_of_it_is_left() -> None:
    # 0.5 °C a step: two halves of n values lie 0.25·n apart, and the ends 0.5·(n − 1): five remain.
    assert onset([temperature([50 + 0.5 * i for i in range(20)])]) == 15


def test_the_end_of_a_long_drift_is_not_steady() -> None:
    # The same drift: its last five values keep within 2 °C, but they are a tenth of all.
    assert onset([temperature([50 + 0.5 * i for i in range(50)])]) is None


def test_a_quarter_of_the_run_must_remain() -> None:
    assert onset([step_time([2.0] * 30 + [1.0] * 10)]) == 30
    assert onset([step_time([2.0] * 31 + [1.0] * 9)]) is None


def test_an_oscillation_about_one_level_is_steady() -> None:
    assert onset([step_time([1.0, 1.2, 1.0, 1.0, 1.0] * 10)]) == 0


def test_half_an_oscillation_is_none() -> None:
    # Up and down again, by a third of its level: no five values keep within 2 %.
    hill = [1 + 0.5 * math.sin(math.pi * (i + 0.5) / 20) for i in range(20)]
    assert onset([step_time(hill)]) is None


def test_one_outlier_among_steady_steps_does_not_matter() -> None:
    assert onset([step_time([1.0] * 10 + [5.0] + [1.0] * 10)]) == 0


def test_a_change_near_the_end_is_not_overlooked() -> None:
    assert onset([step_time([2.0] * 35 + [1.0] * 5)]) is None
    assert onset([step_time([2.0] * 39 + [1.0])]) == 0


def test_noise_about_one_level_is_steady_soon() -> None:
    dice = random.Random(1)
    noisy = [1.0 + dice.gauss(0, 0.01) for _ in range(200)]
    found = onset([step_time(noisy)])
    assert found is not None
    assert found < 5


def test_five_values_must_remain() -> None:
    assert onset([step_time([1.0] * 4)]) is None
    assert onset([step_time([1.0] * 5)]) == 0
    assert onset([step_time([2.0] * 3 + [1.0] * 4)]) is None


def test_all_series_must_be_steady_at_once() -> None:
    quick, slow = [2.0] * 3 + [1.0] * 37, [40.0] * 12 + [60.0] * 28
    assert onset([step_time(quick), temperature(slow)]) == 12


def test_drift_is_of_the_whole_length() -> None:
    # From 1.00 to 1.10, of a median of 1.05.
    assert drift(step_time([1 + 0.01 * i for i in range(11)])) == pytest.approx(0.10 / 1.05)
    assert drift(temperature([60.0 - i for i in range(5)])) == pytest.approx(-4)
    # One outlier is no drift.
    assert drift(step_time([1.0, 1.0, 7.0, 1.0, 1.0, 1.0])) == 0
    assert drift(step_time([1.0])) is None


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


def test_a_block_is_one_step_where_steps_are_long() -> None:
    blocks = blocks_of(steps(4, 2.0), 10.0)
    assert [block.first_step for block in blocks] == [0, 1, 2, 3]
    assert blocks[1].window.start_unix_s == pytest.approx(102)
    assert blocks[1].window.end_unix_s == pytest.approx(104)
    assert blocks[1].step_time_s == pytest.approx(2)


def test_blocks_last_a_second_and_the_first_steps_are_left_over() -> None:
    # 0.3 s a step: four of them; 22 = 2 + 5·4.
    blocks = blocks_of(steps(22, 0.3), 10.0)
    assert [block.first_step for block in blocks] == [2, 6, 10, 14, 18]
    assert blocks[-1].window.end_unix_s == pytest.approx(100 + 22 * 0.3)
    assert blocks[0].step_time_s == pytest.approx(0.3)


def test_blocks_last_two_sample_periods() -> None:
    assert len(blocks_of(steps(12, 1.01), 0.5)) == 3


def test_ten_thousand_steps_are_two_hundred_blocks() -> None:
    blocks = blocks_of(steps(10_000, 1.5), 10.0)
    assert len(blocks) == 200
    assert blocks[0].first_step == 0
    assert blocks[1].first_step == 50


def test_no_steps_are_no_blocks() -> None:
    assert blocks_of(steps(1, 1.0).clear(), 10.0) == []


#: a step of warm-up, four that are slow and seven that are not: from 10 to 40 s
DURATIONS_S = (4.0, *(3.0,) * 4, *(2.0,) * 7)


def reduced(
    tmp_path: Path, edit: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row
) -> tuple[dict[str, Any], dict[str, str]]:
    """The row of such a run, whose GPUs draw 400 and 600 W throughout, and its missing reasons."""
    run = Run(
        cell=cell(training=replace(cell().training, measured_steps=len(DURATIONS_S) - 1)),
        edit=edit,
    )
    paths = run.write(tmp_path / "run1")
    rows, at = [], START + 10
    for step, duration_s in enumerate(DURATIONS_S):
        rows.append(
            {
                "step": step,
                "phase": "measured" if step else "warmup",
                "started_unix_s": at,
                "ended_unix_s": at + duration_s,
                "tokens": 32,
            }
        )
        at += duration_s
    for rank in range(2):
        write_csv(paths.rank_steps(rank), STEPS, rows)
    reduce_run(paths.directory)
    row = json.loads(paths.summary.read_text(encoding="utf-8"))["run"]
    return row, json.loads(row["missing_reasons"])


def test_measures_begin_with_the_steady_state(tmp_path: Path) -> None:
    row, _ = reduced(tmp_path)
    assert (row["steady"], row["steady_from_step"]) == (True, 5)
    # Steps 5 to 11, from 26 to 40 s: 64 tokens each, at 1 kW.
    assert row["counted_steps"] == 7
    assert row["measured_duration_s"] == pytest.approx(14)
    assert row["step_time_s"] == pytest.approx(2)
    assert row["tokens_per_s"] == pytest.approx(32)
    assert row["energy_j"] == pytest.approx(14_000)
    assert row["energy_counter_j"] == pytest.approx(14_000)
    assert row["step_time_drift"] == pytest.approx(0, abs=1e-6)
    assert row["power_drift"] == pytest.approx(0, abs=1e-9)


def test_without_a_steady_state_all_measured_steps_count(tmp_path: Path) -> None:
    # GPUs go on warming by 1 °C a second: steps of 2 s take them out of 2 °C within two.
    def warming(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "temperature_c": 30 + row["unix_time_s"] - START}

    row, reasons = reduced(tmp_path, warming)
    assert row["steady"] is False
    assert row["steady_from_step"] is None
    assert "never became steady together" in reasons["steady_from_step"]
    assert row["counted_steps"] == 11
    assert row["measured_duration_s"] == pytest.approx(26)
    # From the middle of the first measured step, at 15.5 s, to that of the last, at 39 s, in
    # blocks that the median of slopes takes to be evenly spaced: about 2.1 °C each.
    assert row["temperature_drift_c"] == pytest.approx(23.5, abs=3)


def test_without_temperatures_nothing_is_called_steady(tmp_path: Path) -> None:
    row, reasons = reduced(tmp_path, lambda row: {**row, "temperature_c": None})
    assert row["steady"] is None
    assert reasons["steady"] == "node1: temperature_c was not read throughout all steps"
    assert row["counted_steps"] == 11
    assert row["power_drift"] == pytest.approx(0, abs=1e-9)


def test_power_that_settles_later_than_step_time_decides(tmp_path: Path) -> None:
    def falling(row: dict[str, Any]) -> dict[str, Any]:
        # 5 % more until step 6 has ended, at 30 s.
        early = row["unix_time_s"] < START + 30
        return {**row, "power_w": row["power_w"] * (1.05 if early else 1.0)}

    row, _ = reduced(tmp_path, falling)
    assert (row["steady"], row["steady_from_step"]) == (True, 7)
    assert row["counted_steps"] == 5
