"""Counters that are read seconds apart, against their values by hand; and what else is sparse.

The run of ``synthetic_run`` is measured from 20 to 40 s. GPU 0 draws 100 W until 5 s, then 400 W.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records import GPU_EVENTS, POWER_SAMPLES, CoolDown, RunPaths, write_json
from workflow_lib.telemetry.validity.counter_span import CounterSpan

from .synthetic_run import START, Run, cell, write_csv


def reduced(paths: RunPaths) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The run's row, GPU 0's, and why that one's fields are null."""
    reduce_run(paths.directory)
    summary = json.loads(paths.summary.read_text(encoding="utf-8"))
    gpu = summary["gpus"][0]
    return summary["run"], gpu, json.loads(gpu["missing_reasons"])


def every(period_s: float, first_s: float = 0.0) -> Callable[[float], bool]:
    """When counters are read: every so many seconds from a time on, first and last sample too."""
    return lambda at: at in (-10, 50) or (at >= first_s and (at - first_s) % period_s == 0)


def energy(counter_j: Callable[[float], float]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, "energy_j": counter_j(row["unix_time_s"] - START)}


def test_a_span_inside_the_window_is_taken_where_it_covers_80_percent_of_it():
    span = CounterSpan(20.0, 40.0)
    for time_s in (10.0, 21.0, 30.0, 37.0, 45.0):
        span.add(time_s, time_s)
    assert [reading.unix_time_s for reading in span.ends() or ()] == [21.0, 37.0]
    assert [reading.unix_time_s for reading in span.nearest() or ()] == [21.0, 37.0]


def test_otherwise_the_readings_about_the_window_are():
    span = CounterSpan(20.0, 40.0)
    for time_s in (10.0, 18.0, 22.0, 37.0, 45.0, 60.0):
        span.add(time_s, time_s)
    assert [reading.unix_time_s for reading in span.ends() or ()] == [18.0, 45.0]
    # 18 and 22 are equally near to the start, and the earlier is taken.
    assert [reading.unix_time_s for reading in span.nearest() or ()] == [18.0, 37.0]


def test_one_reading_near_the_window_tells_nothing():
    span = CounterSpan(20.0, 40.0)
    span.add(30.0, 1.0)
    assert span.ends() is None
    assert span.nearest() is None
    span.add(70.0, 2.0)
    assert span.ends() is None


def test_a_reading_that_is_nearest_to_both_edges_gives_way_to_those_about_the_window():
    span = CounterSpan(20.0, 40.0)
    for time_s in (5.0, 30.0, 55.0):
        span.add(time_s, time_s)
    assert [reading.unix_time_s for reading in span.nearest() or ()] == [5.0, 55.0]


def test_a_fall_outside_of_the_window_is_no_concern_of_it():
    span = CounterSpan(20.0, 40.0)
    for time_s, value in ((10.0, 9.0), (15.0, 1.0), (30.0, 2.0), (45.0, 3.0), (50.0, 0.0)):
        span.add(time_s, value)
    assert not span.fell
    span.add(60.0, 7.0)
    assert [reading.unix_time_s for reading in span.nearest() or ()] == [15.0, 45.0]


def test_a_fall_between_two_readings_of_the_window_is_told():
    within, across = CounterSpan(20.0, 40.0), CounterSpan(20.0, 40.0)
    for time_s, value in ((21.0, 5.0), (22.0, 4.0), (41.0, 6.0)):
        within.add(time_s, value)
    for time_s, value in ((19.0, 5.0), (41.0, 4.0)):
        across.add(time_s, value)
    assert within.fell
    assert across.fell


def test_a_reading_from_before_a_restart_tells_nothing_of_what_comes_after():
    # Restarts between 19 and 21 s, and between 39 and 41 s, may have been outside of the window.
    span = CounterSpan(20.0, 40.0)
    for time_s, value in ((19.0, 5.0), (21.0, 1.0), (39.0, 9.0), (41.0, 0.5), (42.0, 0.7)):
        span.add(time_s, value)
    assert not span.fell
    assert span.around() is None
    assert [reading.unix_time_s for reading in span.nearest() or ()] == [21.0, 39.0]


def test_the_counters_energy_is_spread_over_time_as_power_is(tmp_path):
    # The counter says 410 W where power says 400 W. Read at 20, 31 and 42 s, each up to 0.1 s old:
    # in 22 s 22·410 J beside 22·400 J, so 20·410 J in the measured steps.
    run = Run(counted_at=every(11, 9), edit=energy(lambda at: 100_000 + 410 * at))
    row, gpu, _ = reduced(run.write(tmp_path / "run1"))
    assert (gpu["energy_source"], gpu["energy_j"]) == ("counter", pytest.approx(20 * 410))
    assert gpu["energy_integral_j"] == pytest.approx(20 * 400)
    assert gpu["energy_difference"] == pytest.approx(400 / 410 - 1)
    # Over GPU 0 and GPU 1, which draws 600 W: 820 J against 1000 J a second.
    assert row["energy_difference"] == pytest.approx(1000 / 820 - 1)
    assert row["energy_error_share"] == pytest.approx((10 + 190) / 820)


def test_a_counter_read_once_in_the_window_and_far_from_its_edges_tells_no_energy(tmp_path):
    run = Run(counted_at=lambda at: at in (28, 32, 33))
    _, gpu, reasons = reduced(run.write(tmp_path / "run1"))
    assert gpu["energy_source"] == "integral"
    # 8 s from the start and 7 s from the end, and 0.05 s earlier by the mean age of the counter.
    assert "nearest to the edges of the measured steps are 15 s off" in reasons["energy_difference"]
    assert "was not read both before and after" in reasons["ecc_corrected_errors"]


def test_shares_of_throttling_are_of_the_readings_inside_the_measured_steps(tmp_path):
    # At the cap only from 30 s on. Read every 4 s from 22 s on, so from 22 to 38 s: 8 of 16 s.
    def capped(row: dict[str, Any]) -> dict[str, Any]:
        at = row["unix_time_s"] - START
        return {**row, "throttle_power_cap_s": max(at - 30, 0)}

    _, gpu, _ = reduced(Run(counted_at=every(4, 2), edit=capped).write(tmp_path / "run1"))
    assert gpu["throttle_source"] == "counters"
    assert gpu["throttle_power_share"] == pytest.approx(0.5)


def test_time_outside_of_the_measured_steps_dilutes_no_share(tmp_path):
    # At the cap whenever there is a load, from 10 to 40 s. Read at −1, 13, 27, 41 s: one of these
    # is inside, and about it 13 and 41 s, or 28 s, of which 27 are capped.
    def capped(row: dict[str, Any]) -> dict[str, Any]:
        at = row["unix_time_s"] - START
        return {**row, "throttle_power_cap_s": min(max(at - 10, 0), 30)}

    _, gpu, _ = reduced(Run(counted_at=every(14, -1), edit=capped).write(tmp_path / "run1"))
    assert gpu["throttle_source"] == "events"
    assert gpu["throttle_power_share"] == 1.0
    # At 23, 30, 37 s: all inside.
    _, gpu, _ = reduced(Run(counted_at=every(7, 2), edit=capped).write(tmp_path / "run2"))
    assert gpu["throttle_source"] == "counters"
    assert gpu["throttle_power_share"] == 1.0


def test_where_counters_are_read_too_rarely_the_event_bits_tell(tmp_path):
    # At −10 and 50 s, three windows apart.
    _, gpu, _ = reduced(Run(counted_at=lambda at: at in (-10, 50)).write(tmp_path / "run1"))
    assert gpu["throttle_source"] == "events"
    assert gpu["throttle_power_share"] == gpu["throttle_power_sampled_share"] == 1.0


def test_without_a_reading_inside_slow_readings_have_no_figure(tmp_path):
    _, gpu, reasons = reduced(Run(counted_at=lambda at: at in (-10, 50)).write(tmp_path / "run1"))
    assert reasons["memory_temperature_peak_c"] == "no reading lies within the measured steps"
    # Errors are rare, and known all the same.
    assert gpu["ecc_corrected_errors"] == 1


def test_without_the_files_of_slow_readings_their_figures_are_null(tmp_path):
    paths = Run().write(tmp_path / "run1")
    for path in (
        paths.gpu_counters("node1"),
        paths.host_samples("node1"),
        paths.gpu_events("node1"),
        paths.telemetry_end("node1"),
    ):
        path.unlink()
    row, gpu, reasons = reduced(paths)
    run_reasons = json.loads(row["missing_reasons"])
    for column in ("energy_error_share", "thermal_margin_c", "ecc_corrected_errors"):
        assert reasons[column] == "telemetry/node1-counters.csv is missing"
    assert reasons["xid_events"] == "telemetry/node1-events.csv is missing"
    assert run_reasons["cpu_energy_j"] == "node1: telemetry/node1-host.csv is missing"
    assert run_reasons["sampler_cpu_share"] == "node1: telemetry/node1-host.csv is missing"
    assert gpu["throttle_source"] == "events"
    assert row["energy_j"] == 20_000


def test_reasons_are_the_samplers_where_it_has_one(tmp_path):
    paths = Run(missing={"event": "no permission"}).write(tmp_path / "run1")
    paths.gpu_events("node1").unlink()
    _, _, reasons = reduced(paths)
    assert reasons["xid_events"] == "no permission"


def test_xid_events_of_the_whole_run_are_counted(tmp_path):
    paths = Run().write(tmp_path / "run1")
    events = [(1.0, 0, "xid", 48), (2.0, 1, "xid", 63), (49.0, 0, "xid", 31), (3.0, 0, "lost", "")]
    rows = [dict(zip((c.name for c in GPU_EVENTS), event, strict=True)) for event in events]
    write_csv(paths.gpu_events("node1"), GPU_EVENTS, rows)
    assert reduced(paths)[1]["xid_events"] == 2


def write_driver_samples(paths: RunPaths, from_s: float, to_s: float) -> None:
    """20 ms apart, of GPU 0: its power, but 690 W at 25 s and 800 W at 45 s, a sample each."""
    spikes = {25.0: 690_000, 45.0: 800_000}
    rows = [
        {
            "driver_time_us": round((START + tick / 50) * 1e6),
            "gpu": 0,
            "power_mw": spikes.get(tick / 50, 400_000 if tick >= 250 else 100_000),
        }
        for tick in range(round(from_s * 50), round(to_s * 50))
    ]
    write_csv(paths.power_samples("node1"), POWER_SAMPLES, rows)


def test_power_is_that_of_the_drivers_own_samples_where_they_have_no_hole(tmp_path):
    paths = Run().write(tmp_path / "run1")
    write_driver_samples(paths, -12, 51)
    row, gpu, _ = reduced(paths)
    assert (gpu["power_peak_w"], gpu["power_source"]) == (690.0, "driver")
    # 20 s at 400 W, and a triangle of 290 W that is 40 ms wide.
    assert gpu["energy_integral_j"] == pytest.approx(8000 + 290 * 0.02, abs=0.01)
    assert row["power_peak_w"] == 690.0


@pytest.mark.parametrize(("from_s", "to_s"), [(-5, 51), (-12, 41)])
def test_driver_samples_that_miss_a_part_are_left_aside(tmp_path, from_s, to_s):
    whole = Run().write(tmp_path / "whole" / "run1")
    paths = Run().write(tmp_path / "run1")
    write_driver_samples(paths, from_s, to_s)
    assert reduced(paths)[1]["power_source"] == "readings"
    assert reduced(paths)[1]["energy_j"] == reduced(whole)[1]["energy_j"]


@pytest.mark.parametrize("factor", [0.001, 0.9, 1.1])
def test_driver_samples_that_disagree_with_readings_are_left_aside(tmp_path, factor):
    # A driver that gives W where others give mW, or a tenth too much. Readings were checked against
    # the energy counter; these samples were not.
    whole = Run().write(tmp_path / "whole" / "run1")
    paths = Run().write(tmp_path / "run1")
    write_driver_samples(paths, -12, 51)
    path = paths.power_samples("node1")
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    split = [line.rsplit(",", 1) for line in lines]
    scaled = [f"{start},{round(int(power) * factor)}" for start, power in split]
    path.write_text("\n".join([header, *scaled, ""]), encoding="utf-8")
    assert reduced(paths)[1]["power_source"] == "readings"
    assert reduced(paths)[1]["energy_j"] == reduced(whole)[1]["energy_j"]


def test_the_idle_baseline_begins_after_the_cool_down(tmp_path):
    def cooling(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "power_w": 900} if row["unix_time_s"] < START - 6 else row

    cool = cell(telemetry=replace(cell().telemetry, cool_down_to_c=40.0, cool_down_limit_s=60.0))
    paths = Run(cell=cool, edit=cooling).write(tmp_path / "run1")
    assert reduced(paths)[0]["cool_down_s"] is None
    write_json(paths.cool_down, CoolDown(START - 10, 4.0, True, 60.0, 40.0))
    row, _, _ = reduced(paths)
    assert row["cool_down_s"] == 4.0
    assert row["idle_power_w"] == pytest.approx(210)


def test_an_energy_says_how_far_its_sensors_may_be_off(tmp_path):
    paths = Run().write(tmp_path / "run1")
    row, _, _ = reduced(paths)
    # Of each of two sensors a gain of 10 % and an offset of 12.5 W: the truth may be as low as
    # (power − 25 W)/1.1.
    power_w = row["power_mean_w"]
    expected = power_w / ((power_w - 25) / 1.1) - 1
    assert row["energy_systematic_share"] == pytest.approx(expected)
    assert expected > 0.1
    start = json.loads(paths.telemetry_start("node1").read_text(encoding="utf-8"))
    changes = {"source": "simulated", "simulated": True}
    write_json(paths.telemetry_start("node1"), {**start, **changes})
    row, _, _ = reduced(paths)
    assert row["energy_systematic_share"] is None
    assert json.loads(row["missing_codes"])["energy_systematic_share"] == "simulated_sensor_error"
