"""What a power cap does, on runs whose power, clocks and counters are known at every moment.

The run of ``synthetic_run`` is measured from 20 to 40 s; its limit is 700 W, its highest clock
2000 MHz.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ROOT
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import TelemetryEnd
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

from .synthetic_run import NO_HEAT, Run, assert_null, setting, summary, write_driver_samples

LIMIT_FIGURES = ("power_limit_w", "power_of_limit_share", "at_power_limit_share")


def sampled(directory: Path, power_w: Callable[[float], float], run: Run | None = None) -> RunPaths:
    """A run with the driver's own samples of such power and readings, each the mean of the second
    before, without a counter of energy."""

    def mean_w(at_s: float) -> float:
        return sum(power_w(at_s - 1 + tick / 50) for tick in range(50)) / 50

    edit = setting(power_w=mean_w, energy_j=None)
    paths = replace(run or Run(), edit=edit).write(directory / "run1")
    write_driver_samples(paths, power_w)
    return paths


def in_bursts(at_s: float) -> float:
    """Of each half second, 0.2 s at 700 W and 0.3 s at 450 W."""
    return 700.0 if 100 <= round(1000 * at_s) % 500 < 300 else 450.0


@pytest.mark.parametrize(
    ("power_w", "of_limit", "share", "burst_s"),
    [
        # 550 W on average; the bit of the cap is set always.
        (in_bursts, 550 / 700, 0.4, 0.2),
        (lambda at_s: 690.0, 690 / 700, 1.0, 20.0),
        (lambda at_s: 600.0, 600 / 700, 0.0, None),
    ],
)
def test_a_cap_in_bursts_is_told_from_one_that_always_holds(
    tmp_path, power_w, of_limit, share, burst_s
):
    reduced = summary(sampled(tmp_path, power_w))
    run = reduced["run"]
    assert run["power_of_limit_share"] == pytest.approx(of_limit, rel=1e-3)
    assert run["at_power_limit_share"] == pytest.approx(share, rel=1e-3)
    if burst_s is None:
        assert_null(run, "at_power_limit_burst_s", "never_at_limit")
    else:
        assert run["at_power_limit_burst_s"] == pytest.approx(burst_s, rel=1e-3)
    assert run["capped_clock_share"] == pytest.approx(0.75)
    assert [gpu["throttle_power_sampled_share"] for gpu in reduced["gpus"]] == [1.0, 1.0]


def test_a_clock_that_was_not_read_has_no_share_either(tmp_path):
    # For 18 of the 20 s event bits were read and the clock was not.
    silent = setting(lambda at_s, gpu: 21 < at_s < 39, sm_clock_mhz=None)
    run = Run(edit=silent).reduced(tmp_path)["run"]
    for name in ("sm_clock_mean_mhz", "capped_clock_share"):
        assert_null(run, name, "reading_gap", "node1 GPU 0", "sm_clock_mhz", "18 s")


def test_each_gpus_own_limit_counts(tmp_path):
    reduced = summary(sampled(tmp_path, lambda at_s: 395.0, Run(power_limits_w={1: 400.0})))
    assert [gpu["power_limit_w"] for gpu in reduced["gpus"]] == [700.0, 400.0]
    shares = [gpu["at_power_limit_share"] for gpu in reduced["gpus"]]
    assert shares == [0.0, pytest.approx(1.0)]
    assert reduced["run"]["power_limit_w"] == 400.0


def test_a_limit_that_power_ignores_is_not_the_runs(tmp_path):
    # 400 W and 600 W on average; the limit of GPU 1 was 300 W when sampling began.
    reduced = Run(power_limits_w={1: 300.0}).reduced(tmp_path)
    assert reduced["gpus"][0]["power_of_limit_share"] == pytest.approx(400 / 700)
    code, values = "limit_raised_later", ("600 W", "300 W")
    assert_null(reduced["gpus"][1], "at_power_limit_share", code, *values)
    assert_null(reduced["run"], "power_of_limit_share", code, "node1 GPU 1", *values)


@pytest.mark.parametrize(("at_the_end_w", "is_known"), [(700.2, True), (650.0, False)])
def test_a_limit_that_was_changed_meanwhile_is_nobodys(tmp_path, at_the_end_w, is_known):
    paths = sampled(tmp_path, lambda at_s: 600.0)
    end = read_record(paths.telemetry_end("node1"), TelemetryEnd)
    write_json(paths.telemetry_end("node1"), replace(end, power_limits_w=(at_the_end_w, None)))
    reduced = summary(paths)
    assert reduced["gpus"][1]["power_limit_w"] == 700.0
    if is_known:
        assert reduced["run"]["power_limit_w"] == 700.0
    else:
        for name in LIMIT_FIGURES:
            values = ("node1 GPU 0", "700 W", "650 W")
            assert_null(reduced["run"], name, "limit_changed", *values)


def test_a_limit_that_is_not_told_is_null_and_so_is_what_rests_on_it(tmp_path):
    run = Run(power_limits_w={0: None}).reduced(tmp_path)["run"]
    for name in LIMIT_FIGURES:
        assert_null(run, name, "driver_does_not_tell")


def test_one_run_never_has_shares_of_two_sources(tmp_path):
    # GPU 1 lacks a counter. GPU 0 was at the cap for half of the time, with the bit always set.
    of_one = setting(lambda at_s, gpu: gpu == 1, throttle_power_cap_s=None)
    reduced = Run(edit=of_one).reduced(tmp_path)
    assert [gpu["throttle_source"] for gpu in reduced["gpus"]] == ["events", "events"]
    assert [gpu["throttle_power_share"] for gpu in reduced["gpus"]] == [1.0, 1.0]
    assert reduced["run"]["throttle_power_share"] == 1.0
    assert_null(reduced["run"], "throttle_share_error", "events_without_bound")


@pytest.mark.parametrize("bits", [4, 0x20, None])
def test_beside_heat_the_counter_of_the_cap_tells_nothing(tmp_path, bits):
    # NVIDIA's counts both, as for half of this time: the bits say which it was.
    reduced = Run(edit=setting(event_reasons=bits)).reduced(tmp_path)
    gpu = reduced["gpus"][0]
    assert gpu["throttle_source"] == "counters"
    assert gpu["throttle_thermal_share"] == pytest.approx(0.15)
    if bits is None:
        assert gpu["throttle_power_share"] is None
    else:
        assert gpu["throttle_power_share"] == (1.0 if bits == 4 else 0.0)


def test_an_overheated_h100_counted_heat_as_time_at_its_cap():
    with zipfile.ZipFile(ROOT / "evidence/measured/hot-gpu-h100x2.zip") as archive:

        def rows(name: str) -> list[dict[str, str]]:
            text = archive.read(f"native/{name}").decode()
            return list(csv.DictReader(io.StringIO(text)))

        steps = rows("steps/rank0.csv")
        window = float(steps[5]["started_unix_s"]), float(steps[-1]["ended_unix_s"])
        hot = [
            [
                row
                for row in rows(f"telemetry/{name}.csv")
                if row["gpu"] == "1" and window[0] < float(row["unix_time_s"]) < window[1]
            ]
            for name in ("vm", "vm-counters")
        ]
    capped = [int(row["event_reasons"]) & 4 for row in hot[0]]
    assert sum(map(bool, capped)) < 0.01 * len(capped)
    counted = [row for row in hot[1] if row["throttle_power_cap_s"]]
    grew = [
        float(counted[-1][name]) - float(counted[0][name])
        for name in ("throttle_power_cap_s", "throttle_sw_thermal_s")
    ]
    assert grew[0] == pytest.approx(grew[1], rel=0.01)
    assert grew[0] > 10


@pytest.mark.parametrize("share", [0.03, 0.5, 0.97])
def test_the_true_share_lies_within_the_error_that_is_stated(tmp_path, share):
    # The counter shows whole tenths of a second, and is read at 20.5 and 39.5 s.
    capped = setting(
        throttle_power_cap_s=lambda at_s: int(share * (at_s + 10) * 10) / 10, **NO_HEAT
    )
    run = Run(edit=capped, counted_at=lambda at: at in (20.5, 39.5)).reduced(tmp_path)["run"]
    assert run["throttle_share_error"] == pytest.approx(0.1 / 19)
    assert abs(run["throttle_power_share"] - share) <= run["throttle_share_error"]
