"""What a power cap does, on runs whose power, clocks and counters are known at every moment.

The run of ``synthetic_run`` is measured from 20 to 40 s; its limit is 700 W, its highest clock
2000 MHz.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records import (
    GPU_COUNTERS,
    GPU_SAMPLES,
    POWER_SAMPLES,
    RunPaths,
    TelemetryEnd,
    read_record,
    write_json,
)

from .synthetic_run import START, Run, write_csv


def reduced(paths: RunPaths) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run's row and its GPUs'."""
    reduce_run(paths.directory)
    summary = json.loads(paths.summary.read_text(encoding="utf-8"))
    return summary["run"], summary["gpus"]


def with_driver_samples(paths: RunPaths, power_w: Callable[[int], float]) -> RunPaths:
    """The driver's own samples of both GPUs, one every 20 ms, and readings, each the mean of the
    second before, without a counter of energy; ``power_w`` is given a time in ms."""
    rows = [
        {
            "driver_time_us": round((START + at / 1000) * 1e6),
            "gpu": gpu,
            "power_mw": round(1000 * power_w(at)),
        }
        for at in range(-10_000, 50_001, 20)
        for gpu in (0, 1)
    ]
    write_csv(paths.power_samples("node1"), POWER_SAMPLES, rows)
    with paths.gpu_samples("node1").open(encoding="utf-8", newline="") as lines:
        readings = list(csv.DictReader(lines))
    for each in readings:
        at_ms = round(1000 * (float(each["unix_time_s"]) - START))
        second = range(at_ms - 1000, at_ms, 20)
        each["power_w"] = str(sum(map(power_w, second)) / len(second))
    write_csv(paths.gpu_samples("node1"), GPU_SAMPLES, readings)
    with paths.gpu_counters("node1").open(encoding="utf-8", newline="") as lines:
        counters = [{**row, "energy_j": ""} for row in csv.DictReader(lines)]
    write_csv(paths.gpu_counters("node1"), GPU_COUNTERS, counters)
    return paths


def test_a_cap_in_bursts_is_told_from_one_that_always_holds(tmp_path):
    # Of each half second, 0.2 s at 700 W and 0.3 s at 450 W, with the bit of the cap always set:
    # 550 W on average, 79 % of the limit.
    def power_w(at_ms: int) -> float:
        return 700.0 if 100 <= at_ms % 500 < 300 else 450.0

    paths = with_driver_samples(Run().write(tmp_path / "run1"), power_w)
    run, gpus = reduced(paths)
    assert run["power_of_limit_share"] == pytest.approx(550 / 700, rel=1e-3)
    assert run["at_power_limit_share"] == pytest.approx(0.4, rel=1e-3)
    assert run["at_power_limit_burst_s"] == pytest.approx(0.2, rel=1e-3)
    assert run["capped_clock_share"] == pytest.approx(0.75)
    assert [gpu["throttle_power_sampled_share"] for gpu in gpus] == [1.0, 1.0]


def test_power_that_stays_at_the_limit_is_one_burst(tmp_path):
    paths = with_driver_samples(Run().write(tmp_path / "run1"), lambda at: 690.0)
    run, _ = reduced(paths)
    assert run["at_power_limit_share"] == pytest.approx(1.0)
    assert run["at_power_limit_burst_s"] == pytest.approx(20.0)


def test_power_that_never_gets_there_has_no_bursts(tmp_path):
    paths = with_driver_samples(Run().write(tmp_path / "run1"), lambda at: 600.0)
    run, _ = reduced(paths)
    assert run["at_power_limit_share"] == 0.0
    assert json.loads(run["missing_codes"])["at_power_limit_burst_s"] == "never_at_limit"


def test_a_clock_that_was_not_read_has_no_share_either(tmp_path):
    # For 18 of the 20 s event bits were read and the clock was not.
    def edit(row: dict[str, Any]) -> dict[str, Any]:
        silent = START + 21 < row["unix_time_s"] < START + 39
        return {**row, "sm_clock_mhz": None} if silent else row

    row, _ = reduced(Run(edit=edit).write(tmp_path / "run1"))
    reasons = json.loads(row["missing_reasons"])
    for name in ("sm_clock_mean_mhz", "capped_clock_share"):
        assert row[name] is None
        assert reasons[name].startswith("node1 GPU 0: sm_clock_mhz was not read for 18 s")


def test_each_gpus_own_limit_counts(tmp_path):
    run = Run(power_limits_w={1: 400.0})
    row, gpus = reduced(with_driver_samples(run.write(tmp_path / "run1"), lambda at: 395.0))
    assert [gpu["power_limit_w"] for gpu in gpus] == [700.0, 400.0]
    assert [gpu["at_power_limit_share"] for gpu in gpus] == [0.0, pytest.approx(1.0)]
    assert row["power_limit_w"] == 400.0


def test_a_limit_that_power_ignores_is_not_the_runs(tmp_path):
    # 400 W and 600 W on average; the limit of GPU 1 was 300 W when sampling began.
    row, gpus = reduced(Run(power_limits_w={1: 300.0}).write(tmp_path / "run1"))
    assert gpus[0]["power_of_limit_share"] == pytest.approx(400 / 700)
    why = "mean power was 600 W, so the limit of 300 W, read before training, was raised later"
    assert json.loads(gpus[1]["missing_reasons"])["at_power_limit_share"] == why
    assert row["power_of_limit_share"] is None
    assert json.loads(row["missing_reasons"])["power_of_limit_share"] == f"node1 GPU 1: {why}"


@pytest.mark.parametrize(("at_the_end_w", "is_known"), [(700.2, True), (650.0, False)])
def test_a_limit_that_was_changed_meanwhile_is_nobodys(tmp_path, at_the_end_w, is_known):
    paths = with_driver_samples(Run().write(tmp_path / "run1"), lambda at: 600.0)
    end = read_record(paths.telemetry_end("node1"), TelemetryEnd)
    limits = (at_the_end_w, None)
    write_json(paths.telemetry_end("node1"), replace(end, power_limits_w=limits))
    row, gpus = reduced(paths)
    assert gpus[1]["power_limit_w"] == 700.0
    if is_known:
        assert row["power_limit_w"] == 700.0
        return
    why = "node1 GPU 0: the limit was changed during the run, from 700 W to 650 W"
    for name in ("power_limit_w", "power_of_limit_share", "at_power_limit_share"):
        assert row[name] is None
        assert json.loads(row["missing_reasons"])[name] == why


def test_a_limit_that_is_not_told_is_null_and_so_is_what_rests_on_it(tmp_path):
    row, _ = reduced(Run(power_limits_w={0: None}).write(tmp_path / "run1"))
    reasons = json.loads(row["missing_codes"])
    for name in ("power_limit_w", "power_of_limit_share", "at_power_limit_share"):
        assert reasons[name] == "limit_not_told"


def test_one_run_never_has_shares_of_two_sources(tmp_path):
    # GPU 1 lacks a counter. GPU 0 was at the cap for half of the time, with the bit always set.
    def edit(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "throttle_power_cap_s": None} if row["gpu"] == 1 else row

    run, gpus = reduced(Run(edit=edit).write(tmp_path / "run1"))
    assert [gpu["throttle_source"] for gpu in gpus] == ["events", "events"]
    assert [gpu["throttle_power_share"] for gpu in gpus] == [1.0, 1.0]
    assert run["throttle_power_share"] == 1.0
    assert json.loads(run["missing_codes"])["throttle_share_error"] == "events_without_bound"


@pytest.mark.parametrize("share", [0.03, 0.5, 0.97])
def test_the_true_share_lies_within_the_error_that_is_stated(tmp_path, share):
    # The counter shows whole tenths of a second, and is read at 20.5 and 39.5 s.
    def edit(row: dict[str, Any]) -> dict[str, Any]:
        at = row["unix_time_s"] - START
        return {**row, "throttle_power_cap_s": int(share * (at + 10) * 10) / 10}

    read = Run(edit=edit, counted_at=lambda at: at in (20.5, 39.5))
    run, _ = reduced(read.write(tmp_path / "run1"))
    assert run["throttle_share_error"] == pytest.approx(0.1 / 19)
    assert abs(run["throttle_power_share"] - share) <= run["throttle_share_error"]
