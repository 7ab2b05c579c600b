"""Energy by the driver's counter, beside power whose samples see a load wrongly.

The run of ``synthetic_run`` is measured from 20 to 40 s, in two steps of 10 s. Here both of its
GPUs have the driver's samples every 20 ms, and a counter that is renewed every 0.1 s.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workflow_lib import audit
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import GPU_COUNTERS

from .synthetic_run import (
    START,
    Run,
    assert_null,
    setting,
    summary,
    write_csv,
    write_driver_samples,
)

#: the time of each renewal, after a whole tenth of a second
RENEWED_S = 0.03
#: the longest time between two calls of a search for a change
AGE_S = 0.014
#: energy in J from START on, at a time in s after it
Energy = Callable[[float], float]
#: power in W at such a time
Power = Callable[[float], float]


def steady(watts: float) -> Energy:
    return lambda at: watts * at


def steady_power(at: float) -> float:
    return 400.0


def jump(at: float) -> float:
    """100 W, but 700 W in the measured steps alone."""
    return 100 * at + 600 * min(max(at - 20, 0), 20)


def jumping(at: float) -> float:
    return 700.0 if 20 <= at < 40 else 100.0


def renewed(energy: Energy, at: float) -> float:
    """What the counter says at a time: the energy at its last renewal."""
    return 1e6 + energy((at - RENEWED_S) // 0.1 * 0.1 + RENEWED_S)


def at_changes(energy: Energy) -> list[dict[str, Any]]:
    """Counters read at a change every 2 s."""
    rows = []
    for second in range(-10, 50, 2):
        change_s = second + 0.1 + RENEWED_S
        read_s = change_s + AGE_S / 2
        value = 1e6 + energy(change_s)
        rows += [row(gpu, read_s, value, AGE_S) for gpu in (0, 1)]
    return rows


def anywhere(energy: Energy, times_s: Sequence[float]) -> list[dict[str, Any]]:
    """Counters read at any time, as earlier versions did."""
    return [row(gpu, at, renewed(energy, at), None) for at in times_s for gpu in (0, 1)]


def row(gpu: int, at: float, energy_j: float, age_s: float | None) -> dict[str, Any]:
    fields = {"unix_time_s": START + at, "gpu": gpu, "energy_j": energy_j, "energy_age_s": age_s}
    return {**fields, "read_cost_s": 0.004}


def written(
    directory: Path, power_w: Power, counters: list[dict[str, Any]], sampled_w: Power | None = None
) -> RunPaths:
    """A run with readings and the driver's samples of one power, or of two, and these counters."""
    readings = Run(edit=setting(power_w=power_w))
    paths = readings.write(directory / "run1")
    write_driver_samples(paths, sampled_w or power_w)
    write_csv(paths.gpu_counters("node1"), GPU_COUNTERS, counters)
    return paths


def gpu_0(paths: RunPaths) -> dict[str, Any]:
    """GPU 0's row of a run."""
    row: dict[str, Any] = summary(paths)["gpus"][0]
    return row


def test_energy_is_the_counters_where_samples_are_in_step_with_the_load(tmp_path):
    # A square wave of 20 ms between 200 and 600 W: 400 W. Each look sees 600 W for 70 % of its
    # time: 480 W.
    seen_w = 0.7 * 600 + 0.3 * 200
    paths = written(tmp_path, lambda _: seen_w, at_changes(steady(400.0)))
    reduced = summary(paths)
    run, gpu = reduced["run"], reduced["gpus"][0]
    assert (gpu["energy_source"], gpu["power_source"]) == ("counter", "driver")
    assert gpu["energy_j"] == pytest.approx(8000)
    assert gpu["power_mean_w"] == pytest.approx(400)
    assert gpu["energy_integral_j"] == pytest.approx(9600)
    assert gpu["energy_difference"] == pytest.approx(0.2)
    assert gpu["energy_error_share"] == pytest.approx(0.2)
    assert run["energy_j"] == pytest.approx(16_000)
    assert (run["energy_difference"], run["energy_error_share"]) == pytest.approx((0.2, 0.2))
    assert run["energy_per_token_j"] == pytest.approx(16_000 / 128)
    # A peak is one of what was sampled.
    assert gpu["power_peak_w"] == pytest.approx(seen_w)


def test_steps_in_step_with_the_looks_are_told_where_counter_and_samples_agree(tmp_path):
    # Looks see 600 and 200 W in turn, and a step lasts 500 of them.
    paths = written(
        tmp_path,
        lambda _: 400.0,
        at_changes(steady(400.0)),
        sampled_w=lambda at: 600.0 if round(50 * at) % 2 else 200.0,
    )
    gpu = gpu_0(paths)
    assert abs(gpu["energy_difference"]) < 1e-4
    assert gpu["energy_error_share"] == pytest.approx(0.2 * 0.02 / 10, rel=1e-3)
    files = audit.Files("run1", functools.partial(audit.read_file, paths.directory))
    audited = audit.Audit(files).values["energy_error_share"]
    assert audited == pytest.approx(gpu["energy_error_share"], rel=1e-6)
    # Simulated power has no sensor.
    start = json.loads(paths.telemetry_start("node1").read_text("utf-8"))
    paths.telemetry_start("node1").write_text(json.dumps(start | {"simulated": True}), "utf-8")
    assert gpu_0(paths)["energy_error_share"] == 0
    assert audit.Audit(files).values["energy_error_share"] == 0
    # The energies of the steps add up to that of the run.
    steps = pl.read_parquet(paths.step_times).filter("counted")
    assert steps["energy_j"].to_list() == pytest.approx([8000, 8000])


def test_a_jump_of_power_at_the_edges_is_found_in_the_samples(tmp_path):
    # 14 kJ. Straight lines between readings 0.1 s apart would lose up to 30 J at an edge, and
    # readings 2 s apart 600 J.
    gpu = gpu_0(written(tmp_path, jumping, at_changes(jump)))
    assert gpu["energy_source"] == "counter"
    # The samples show the jump 10 ms before it, in the middle of a line of 20 ms.
    assert gpu["energy_j"] == pytest.approx(14_000, abs=6)
    # A change that was found 7 ms late at each end.
    assert gpu["energy_error_share"] == 0.0


@pytest.mark.parametrize("phase_s", [0.0, 0.02, 0.04, 0.06, 0.08])
def test_a_counter_that_was_read_anywhere_is_off_by_no_more_than_its_age(tmp_path, phase_s):
    # Read every 20 s: 0.1 s of 700 W is 70 J at most, in all, over 20 s.
    times_s = [-9.9, *(place + phase_s for place in (19.3, 39.5, 49.7))]
    gpu = gpu_0(written(tmp_path, jumping, anywhere(jump, times_s)))
    assert gpu["energy_source"] == "counter"
    assert abs(gpu["energy_j"] - 14_000) <= 70
    # What the age of the readings explains is not an error of the sensor.
    assert gpu["energy_error_share"] == 0.0


def test_readings_too_close_to_each_other_tell_less_than_samples(tmp_path):
    # 15 s apart, and each up to 0.1 s old.
    paths = written(tmp_path, steady_power, anywhere(steady(400.0), [22.5, 37.5]))
    reduced = summary(paths)
    run, gpu = reduced["run"], reduced["gpus"][0]
    assert (gpu["energy_source"], gpu["energy_j"]) == ("integral", pytest.approx(8000))
    for each in (gpu, run):
        for name in ("energy_difference", "energy_error_share"):
            assert_null(each, name, "counter_times_uncertain", "15 s", "0.1 s")
    assert run["energy_j"] == pytest.approx(16_000)


@pytest.mark.parametrize(("readings", "last_s", "refused"), [(True, 30.0, 11), (False, 25.08, 5)])
def test_power_that_no_such_gpu_draws_is_left_out(tmp_path, readings, last_s, refused):
    """3,700 W on a GPU with a limit of 700 W: eleven readings, or five samples of the driver."""

    def spike(at: float) -> float:
        return 3700.0 if 25 - 1e-4 <= at <= last_s + 1e-4 else 400.0

    powers = (spike, steady_power) if readings else (steady_power, spike)
    gpu = gpu_0(written(tmp_path, powers[0], at_changes(steady(400.0)), powers[1]))
    assert gpu["power_refused"] == refused
    assert gpu["power_peak_w"] == 400.0
    assert gpu["energy_integral_j"] == pytest.approx(8000)
    assert gpu["energy_j"] == pytest.approx(8000)


def test_what_a_gpu_may_draw_for_a_moment_stays(tmp_path):
    # On H200 samples of 929 W were seen under a limit of 700 W.
    def moment(at: float) -> float:
        return 929.0 if at == 25 else 400.0

    gpu = gpu_0(written(tmp_path, steady_power, at_changes(steady(400.0)), moment))
    assert (gpu["power_refused"], gpu["power_peak_w"]) == (0, 929.0)


@pytest.mark.parametrize(
    ("after_s", "by_j", "code"),
    [
        # A restart counts only within the measured steps.
        *((after_s, -9e5, None) for after_s in (-5.0, 19.0, 41.0, 47.0)),
        (30.0, -9e5, "counter_fell"),
        # 100 kJ in 2 s.
        (30.0, 1e5, "counter_too_fast"),
    ],
)
def test_a_counter_that_restarts_or_leaps_is_not_believed(tmp_path, after_s, by_j, code):
    counters = at_changes(steady(400.0))
    for each in counters:
        each["energy_j"] += by_j * (each["unix_time_s"] > START + after_s)
    gpu = gpu_0(written(tmp_path, lambda at: 480.0, counters))
    assert gpu["energy_source"] == ("integral" if code else "counter")
    assert gpu["energy_j"] == pytest.approx(9600 if code else 8000)
    if code:
        for name in ("energy_difference", "energy_error_share"):
            assert_null(gpu, name, code)
