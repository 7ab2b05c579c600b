"""The AMD source, against a stand-in for ROCm's package. Real GPUs have not been tried."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.telemetry.cells import NODE, make_cell, read_rows, wait_for
from workflow_lib import records

Start = Callable[..., subprocess.Popen[str]]
STAND_IN = str(Path(__file__).with_name("fake_amdsmi"))
CELL = make_cell(ranks=4, source="amd", gpu="MI250", gpus_per_package=2, power_limit_w=500.0)


def sampled(
    sampler: Start, directory: Path, cell: records.Cell = CELL, **environment: str
) -> tuple[list[dict[str, str]], records.TelemetryStart]:
    """The rows of a short run, and what the sampler found."""
    paths = records.RunPaths(directory)
    process = sampler(directory, cell, PYTHONPATH=STAND_IN, **environment)
    wait_for(paths.telemetry_ready(NODE), process)
    time.sleep(0.2)
    process.terminate()
    assert process.wait(10) == 0
    start = records.read_record(paths.telemetry_start(NODE), records.TelemetryStart)
    return read_rows(paths.gpu_samples(NODE)), start


def refusal(sampler: Start, directory: Path, **environment: str) -> str:
    """The one message with which the sampler refuses."""
    process = sampler(directory, CELL, **environment)
    _, message = process.communicate(timeout=20)
    assert process.returncode == 1
    assert message.count("\n") == 1
    return message


def test_the_even_die_reports_the_package(tmp_path: Path, sampler: Start) -> None:
    rows, start = sampled(sampler, tmp_path)
    assert [row["power_w"] for row in rows[:4]] == ["94", "", "94", ""]
    # Each look at the counter adds 1 000 000 units of 15.3 µJ. Two probes came before.
    assert [row["energy_j"] for row in rows[:4]] == ["45.9", "", "61.2", ""]
    assert [row["temperature_c"] for row in rows[:4]] == ["61", "62", "63", "64"]
    assert rows[0]["memory_temperature_c"] == "55"
    assert rows[0]["sm_clock_mhz"] == "1700"
    assert rows[0]["memory_clock_mhz"] == "1600"
    assert rows[0]["utilisation_percent"] == "99"
    assert rows[0]["memory_used_bytes"] == "10737418240"
    assert start.source == "amd"
    assert [gpu["package"] for gpu in start.gpus] == [0, 0, 1, 1]
    assert [gpu["reports_power"] for gpu in start.gpus] == [True, False, True, False]
    assert start.gpus[0]["power_limit_w"] == 500.0
    assert start.gpus[0]["name"] == "AMD INSTINCT MI250 (MCM) OAM AC MBA"


def test_there_is_no_cumulative_throttle_time(tmp_path: Path, sampler: Start) -> None:
    rows, start = sampled(sampler, tmp_path)
    assert {row["throttle_power_cap_s"] for row in rows} == {""}
    assert "no cumulative throttle time" in start.missing["throttle_power_cap_s"]
    assert start.missing["event_reasons"] == (
        "this amdsmi does not tell the reasons for throttling"
    )
    assert {row["event_reasons"] for row in rows} == {""}


def test_throttle_reasons_are_told_in_nvmls_bits(tmp_path: Path, sampler: Start) -> None:
    rows, start = sampled(sampler, tmp_path, FAKE_AMDSMI="bits")
    # Package power limit 0x4 and a temperature 0x20.
    assert {row["event_reasons"] for row in rows} == {"36"}
    assert "event_reasons" not in start.missing


def test_mi300_reports_power_under_its_other_name(tmp_path: Path, sampler: Start) -> None:
    cell = make_cell(ranks=4, source="amd", gpu="MI300X")
    rows, _ = sampled(sampler, tmp_path, cell, FAKE_AMDSMI="mi300")
    assert {row["power_w"] for row in rows} == {"717"}


def test_the_job_sees_one_package(tmp_path: Path, sampler: Start) -> None:
    cell = make_cell(ranks=2, source="amd", gpu="MI250", gpus_per_package=2)
    rows, start = sampled(sampler, tmp_path, cell, ROCR_VISIBLE_DEVICES="2,3")
    assert [gpu["index"] for gpu in start.gpus] == [2, 3]
    assert [row["temperature_c"] for row in rows[:2]] == ["63", "64"]


def test_a_die_without_its_packages_sensor_is_refused(tmp_path: Path, sampler: Start) -> None:
    message = refusal(sampler, tmp_path, PYTHONPATH=STAND_IN, HIP_VISIBLE_DEVICES="0,1,3")
    assert "GPU 3 shares a package with GPU 2" in message


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "ModuleNotFoundError"),
        ({"PYTHONPATH": STAND_IN, "FAKE_AMDSMI": "keyerror"}, "KeyError: 'libamd_smi.so'"),
    ],
)
def test_without_rocms_package_it_is_refused(
    tmp_path: Path, sampler: Start, environment: dict[str, str], message: str
) -> None:
    text = refusal(sampler, tmp_path, **environment)
    assert "needs the site's amdsmi Python package" in text
    assert message in text


def test_without_a_driver_it_is_refused(tmp_path: Path, sampler: Start) -> None:
    text = refusal(sampler, tmp_path, PYTHONPATH=STAND_IN, FAKE_AMDSMI="noinit")
    assert "AMD SMI did not start" in text
    assert "Driver not loaded" in text
