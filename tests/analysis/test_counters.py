"""Counters that are read seconds apart, against their values by hand; and what else is sparse.

The run of ``synthetic_run`` is measured from 20 to 40 s. GPU 0 draws 100 W until 5 s, then 400 W.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workflow_lib.records.nodes import CoolDown
from workflow_lib.records.telemetry_columns import GPU_EVENTS
from workflow_lib.records.whole_files import write_json
from workflow_lib.telemetry.validity.counter_span import CounterSpan, Reading

from .synthetic_run import (
    NO_HEAT,
    START,
    Run,
    assert_null,
    cell,
    setting,
    summary,
    write_csv,
    write_driver_samples,
)


def gpu_0(run: Run, directory: Path) -> dict[str, Any]:
    """The row of GPU 0 of a run."""
    row: dict[str, Any] = run.reduced(directory)["gpus"][0]
    return row


def every(period_s: float, first_s: float = 0.0) -> Callable[[float], bool]:
    """When counters are read: every so many seconds from a time on, first and last sample too."""
    return lambda at: at in (-10, 50) or (at >= first_s and (at - first_s) % period_s == 0)


def span_of(*readings: tuple[float, float]) -> CounterSpan:
    """A window from 20 to 40 s, with the times and values of readings."""
    span = CounterSpan(20.0, 40.0)
    for time_s, value in readings:
        span.add(time_s, value)
    return span


def times(readings: tuple[Reading, Reading] | None) -> list[float] | None:
    return readings and [reading.unix_time_s for reading in readings]


@pytest.mark.parametrize(
    ("read_s", "ends", "nearest"),
    [
        # Inside the window, of which they cover 80 %.
        ([10.0, 21.0, 30.0, 37.0, 45.0], [21.0, 37.0], [21.0, 37.0]),
        # About it. 18 and 22 are equally near to the start, and the earlier is taken.
        ([10.0, 18.0, 22.0, 37.0, 45.0, 60.0], [18.0, 45.0], [18.0, 37.0]),
        # One near the window tells nothing.
        ([30.0], None, None),
        ([30.0, 70.0], None, None),
        # One that is nearest to both edges gives way to those about the window.
        ([5.0, 30.0, 55.0], [5.0, 55.0], [5.0, 55.0]),
    ],
)
def test_a_window_has_the_readings_that_represent_it(read_s, ends, nearest):
    span = span_of(*zip(read_s, read_s, strict=True))
    assert (times(span.ends()), times(span.nearest())) == (ends, nearest)


@pytest.mark.parametrize(
    ("readings", "nearest", "around"),
    [
        ([(10, 9), (15, 1), (30, 2), (45, 3), (50, 0), (60, 7)], [15, 45], [15, 45]),
        # Restarts between 19 and 21 s, and between 39 and 41 s, may have been outside.
        ([(19, 5), (21, 1), (39, 9), (41, 0.5), (42, 0.7)], [21, 39], None),
    ],
)
def test_a_fall_outside_of_the_window_is_no_concern_of_it(readings, nearest, around):
    span = span_of(*readings)
    assert not span.fell
    assert (times(span.nearest()), times(span.around())) == (nearest, around)


def test_a_fall_between_two_readings_of_the_window_is_told():
    assert span_of((21, 5), (22, 4), (41, 6)).fell
    assert span_of((19, 5), (41, 4)).fell


def test_the_counters_energy_is_spread_over_time_as_power_is(tmp_path):
    # The counter says 410 W where power says 400 W. Read at 20, 31 and 42 s, each up to 0.1 s old:
    # in 22 s 22·410 J beside 22·400 J, so 20·410 J in the measured steps.
    edit = setting(energy_j=lambda at_s: 100_000 + 410 * at_s)
    reduced = Run(counted_at=every(11, 9), edit=edit).reduced(tmp_path)
    row, gpu = reduced["run"], reduced["gpus"][0]
    assert (gpu["energy_source"], gpu["energy_j"]) == ("counter", pytest.approx(20 * 410))
    assert gpu["energy_integral_j"] == pytest.approx(20 * 400)
    assert gpu["energy_difference"] == pytest.approx(400 / 410 - 1)
    # Over GPU 0 and GPU 1, which draws 600 W: 820 J against 1000 J a second.
    assert row["energy_difference"] == pytest.approx(1000 / 820 - 1)
    assert row["energy_error_share"] == pytest.approx((10 + 190) / 820)


def test_a_counter_read_once_in_the_window_and_far_from_its_edges_tells_no_energy(tmp_path):
    gpu = gpu_0(Run(counted_at=lambda at: at in (28, 32, 33)), tmp_path)
    assert gpu["energy_source"] == "integral"
    # 8 s from the start and 7 s from the end, and 0.05 s earlier by the mean age of the counter.
    assert_null(gpu, "energy_difference", "counter_off_edges", "15 s")
    assert_null(gpu, "ecc_corrected_errors", "counter_not_around")


@pytest.mark.parametrize(
    ("counted_at", "capped_s", "source", "share"),
    [
        # At the cap only from 30 s on. Read every 4 s from 22 s on, so from 22 to 38 s: 8 of 16 s.
        (every(4, 2), lambda at: max(at - 30, 0), "counters", 0.5),
        # At the cap whenever there is a load, from 10 to 40 s. Read at −1, 13, 27, 41 s: one of
        # these is inside, and about it 13 and 41 s, or 28 s, of which 27 are capped.
        (every(14, -1), lambda at: min(max(at - 10, 0), 30), "events", 1.0),
        # At 23, 30, 37 s: all inside.
        (every(7, 2), lambda at: min(max(at - 10, 0), 30), "counters", 1.0),
        # At −10 and 50 s, three windows apart: the event bits tell, which are set throughout.
        (lambda at: at in (-10, 50), lambda at: 0.5 * (at + 10), "events", 1.0),
    ],
)
def test_shares_of_throttling_are_of_the_readings_inside_the_measured_steps(
    tmp_path, counted_at, capped_s, source, share
):
    edit = setting(throttle_power_cap_s=capped_s, **NO_HEAT)
    gpu = gpu_0(Run(counted_at=counted_at, edit=edit), tmp_path)
    assert gpu["throttle_source"] == source
    assert gpu["throttle_power_share"] == pytest.approx(share)
    assert gpu["throttle_power_sampled_share"] == 1.0


def test_without_a_reading_inside_slow_readings_have_no_figure(tmp_path):
    gpu = gpu_0(Run(counted_at=lambda at: at in (-10, 50)), tmp_path)
    assert_null(gpu, "memory_temperature_peak_c", "no_reading_inside")
    # Errors are rare, and known all the same.
    assert gpu["ecc_corrected_errors"] == 1


def test_without_the_files_of_slow_readings_their_figures_are_null(tmp_path):
    paths = Run().write(tmp_path / "run1")
    counters, host = paths.gpu_counters("node1"), paths.host_samples("node1")
    for path in (counters, host, paths.gpu_events("node1"), paths.telemetry_end("node1")):
        path.unlink()
    reduced = summary(paths)
    row, gpu = reduced["run"], reduced["gpus"][0]
    for column in ("energy_error_share", "thermal_margin_c", "ecc_corrected_errors"):
        assert_null(gpu, column, "file_missing", "telemetry/node1-counters.csv")
    assert_null(gpu, "xid_events", "file_missing", "telemetry/node1-events.csv")
    for column in ("cpu_energy_j", "sampler_cpu_share"):
        assert_null(row, column, "file_missing", "node1", "telemetry/node1-host.csv")
    assert gpu["throttle_source"] == "events"
    assert row["energy_j"] == 20_000


def test_reasons_are_the_samplers_where_it_has_one(tmp_path):
    paths = Run(missing={"event": "no permission"}).write(tmp_path / "run1")
    paths.gpu_events("node1").unlink()
    assert_null(summary(paths)["gpus"][0], "xid_events", "not_read", "no permission")


def test_xid_events_of_the_whole_run_are_counted(tmp_path):
    paths = Run().write(tmp_path / "run1")
    events = [(1.0, 0, "xid", 48), (2.0, 1, "xid", 63), (49.0, 0, "xid", 31), (3.0, 0, "lost", "")]
    rows = [dict(zip((c.name for c in GPU_EVENTS), event, strict=True)) for event in events]
    write_csv(paths.gpu_events("node1"), GPU_EVENTS, rows)
    assert summary(paths)["gpus"][0]["xid_events"] == 2


def spiking(at_s: float) -> float:
    """GPU 0's power, but 690 W at 25 s and 800 W at 45 s."""
    return {25.0: 690.0, 45.0: 800.0}.get(at_s, 400.0 if at_s >= 5 else 100.0)


def test_power_is_that_of_the_drivers_own_samples_where_they_have_no_hole(tmp_path):
    paths = Run().write(tmp_path / "run1")
    write_driver_samples(paths, spiking, -12, 51, gpus=(0,))
    reduced = summary(paths)
    gpu = reduced["gpus"][0]
    assert (gpu["power_peak_w"], gpu["power_source"]) == (690.0, "driver")
    # 20 s at 400 W, and a triangle of 290 W that is 40 ms wide.
    assert gpu["energy_integral_j"] == pytest.approx(8000 + 290 * 0.02, abs=0.01)
    assert reduced["run"]["power_peak_w"] == 690.0


@pytest.mark.parametrize(
    ("from_s", "to_s", "factor"),
    [
        # They miss a part.
        (-5, 51, 1.0),
        (-12, 41, 1.0),
        # They disagree with readings, which were checked against the energy counter: a driver that
        # gives W where others give mW, or a tenth too much.
        (-12, 51, 0.001),
        (-12, 51, 0.9),
        (-12, 51, 1.1),
    ],
)
def test_driver_samples_that_miss_a_part_or_disagree_are_left_aside(tmp_path, from_s, to_s, factor):
    paths = Run().write(tmp_path / "run1")
    write_driver_samples(paths, lambda at_s: factor * spiking(at_s), from_s, to_s, gpus=(0,))
    gpu = summary(paths)["gpus"][0]
    assert (gpu["power_source"], gpu["power_peak_w"]) == ("readings", 400.0)
    assert (gpu["energy_j"], gpu["energy_integral_j"]) == pytest.approx((8000, 8000))


def test_the_idle_baseline_begins_after_the_cool_down(tmp_path):
    cooling = setting(lambda at_s, gpu: at_s < -6, power_w=900)
    cool = cell(cool_down_to_c=40.0, cool_down_limit_s=60.0)
    paths = Run(cell=cool, edit=cooling).write(tmp_path / "run1")
    assert summary(paths)["run"]["cool_down_s"] is None
    write_json(paths.cool_down, CoolDown(START - 10, 4.0, True, 60.0, 40.0))
    row = summary(paths)["run"]
    assert row["cool_down_s"] == 4.0
    assert row["idle_power_w"] == pytest.approx(210)
