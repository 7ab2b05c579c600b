"""The NVIDIA source in the sampler's own process, through the real binding, against a library that
plays NVML.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from tests.telemetry.cells import NODE, make_cell, read_rows, wait_for
from tests.telemetry.nvml import ACTIVITY, Node, Start, build
from workflow_lib.launch import gpu_faults
from workflow_lib.telemetry import choice
from workflow_lib.telemetry.devices.nvml import open_links, started_nvml
from workflow_lib.telemetry.source import TelemetryError, UnreadableError


@pytest.fixture
def node(tmp_path: Path, nvml_library: Path, sampler: Start) -> Node:
    return Node(tmp_path, nvml_library, sampler)


CELL = make_cell(source="nvidia")


def test_every_column_is_in_its_unit(node):
    node.say()
    node.sample(CELL)
    sample, counters = node.rows[0], node.counters[0]
    assert abs(float(sample.pop("unix_time_s")) - time.time()) < 60
    assert 0 < float(sample.pop("read_cost_s")) < 0.1
    assert sample == {
        "gpu": "0",
        "power_w": "79.483",
        "temperature_c": "35",
        "sm_clock_mhz": "1980",
        "memory_clock_mhz": "3201",
        "utilisation_percent": "100",
        "event_reasons": "4",
        "lateness_s": "",
    }
    assert node.rows[1]["power_w"] == "698.125"
    assert abs(float(counters.pop("unix_time_s")) - time.time()) < 60
    assert 0 < float(counters.pop("read_cost_s")) < 0.1
    # The library's means are of Unix times, whose last digits are lost.
    means = {name: float(counters.pop(name)) for name in ACTIVITY}
    assert means == pytest.approx(ACTIVITY, rel=1e-3)
    assert counters == {
        "gpu": "0",
        "energy_j": "123456.789",
        "energy_age_s": "",
        "throttle_power_cap_s": "5.0",
        "throttle_sw_thermal_s": "2.5",
        "throttle_hw_thermal_s": "0.0",
        "throttle_power_brake_s": "0.125",
        "power_instant_w": "91.25",
        "memory_temperature_c": "48",
        "edge_temperature_c": "",
        "thermal_margin_c": "52",
        "gpu_fan_speed_percent": "63",
        "memory_used_bytes": "4294967296000",
        "gpu_link_sent_bytes": "2097152",
        "gpu_link_received_bytes": "1048576",
        "pcie_sent_bytes": "",
        "pcie_received_bytes": "",
        "memory_power_w": "44.1",
        "ecc_corrected_errors": "3",
        "ecc_uncorrected_errors": "0",
    }
    assert node.started.source == "nvidia"
    assert not node.started.simulated
    assert node.started.gpus[1] == {
        "name": "NVIDIA H200",
        "uuid": "GPU-bbbb-1",
        "serial": "1650524",
        "power_limit_w": 700.0,
        "driver_version": "580.65.06",
        "index": 1,
        "package": 1,
        "reports_power": True,
        "power_limit_default_w": 700.0,
        "power_limit_max_w": 700.0,
        "sm_clock_max_mhz": 1980,
        "memory_clock_max_mhz": 3201,
        "temperature_slowdown_c": 87,
        "temperature_shutdown_c": 92,
        "ecc_enabled": True,
        "mig_enabled": False,
        "persistence_mode": True,
        "pcie_generation": 5,
        "pcie_width": 16,
        "vbios_version": "96.00.A5.00.03",
        "pci_bus_id": "00000000:43:00.0",
    }


def test_the_first_and_the_last_row_of_each_gpu_have_every_counter(node):
    node.say()
    node.sample(CELL, seconds=1.5)
    for gpu in "01":
        rows = [row for row in node.counters if row["gpu"] == gpu]
        for row in (rows[0], rows[-1]):
            empty = {name for name, value in row.items() if value == ""}
            pcie = {"pcie_sent_bytes", "pcie_received_bytes"}
            assert empty == {"energy_age_s", "edge_temperature_c", *pcie}


def test_a_failure_in_mid_run_is_an_empty_field_and_counted(node):
    node.say()
    process = node.start(CELL)
    wait_for(node.paths.telemetry_ready(NODE), process)
    node.say(**{"power.error.1": "15", "temperature": "0"})
    time.sleep(0.5)
    node.say()
    time.sleep(0.3)
    process.terminate()
    assert process.wait() == 0
    second = [row["power_w"] for row in node.rows if row["gpu"] == "1"]
    assert (second[0], second[-1]) == ("698.125", "698.125")
    lost = second.count("")
    assert lost >= 5
    assert all(row["power_w"] == "79.483" for row in node.rows if row["gpu"] == "0")
    # A working GPU is never at 0 °C: that is a fault and not a reading.
    assert {row["temperature_c"] for row in node.rows} == {"", "35"}
    errors = dict(node.ended.errors)
    unread = [row["temperature_c"] for row in node.rows].count("")
    assert errors.pop("power_w: GPU is lost") == lost
    ((said, count),) = errors.items()
    assert said.startswith("temperature_c: ")
    assert count == unread >= 5


@pytest.mark.parametrize("visible", ["1", "GPU-bbbb", "1,-1,0"])
def test_only_gpus_that_the_job_sees_are_sampled(node, visible):
    node.say()
    node.sample(make_cell(source="nvidia", ranks=1), CUDA_VISIBLE_DEVICES=visible)
    assert {(row["gpu"], row["power_w"]) for row in node.rows} == {("0", "698.125")}
    assert [(gpu["uuid"], gpu["index"]) for gpu in node.started.gpus] == [("GPU-bbbb-1", 1)]
    # The other one is listed with what it draws, though nothing of it is sampled.
    (other,) = node.started.other_gpus
    assert (other["index"], other["power_w"], other["name"]) == (0, 79.483, "NVIDIA H200")
    assert other["uuid"].startswith("GPU-aaaa")


@pytest.mark.parametrize(
    ("says", "visible", "part"),
    [
        ({}, "0", "shows 1 GPU,"),
        ({"name": "NVIDIA GH200 480GB"}, "0,1", "NVIDIA GH200 480GB"),
        ({"mig_1": "1"}, "0,1", "divided by MIG"),
    ],
)
def test_other_gpus_than_the_cells_are_refused(node, says, visible, part):
    node.say(**says)
    assert part in node.refusal(CELL, CUDA_VISIBLE_DEVICES=visible)
    assert not node.paths.telemetry_ready(NODE).exists()


def test_a_node_without_the_library_or_a_driver_is_refused(node, tmp_path):
    assert "Shared Library" in node.refusal(CELL, LD_LIBRARY_PATH=str(tmp_path))
    node.say(init_error="9")
    assert "Driver Not Loaded" in node.refusal(CELL)


def test_a_driver_before_535_tells_throttling_by_its_older_name(node, tmp_path):
    node.library = build(tmp_path, "-DOLDER_THAN_535")
    node.say()
    node.sample(CELL)
    assert {row["event_reasons"] for row in node.rows} == {"4"}


def test_auto_takes_the_gpus_where_there_are_enough(node):
    node.say()
    node.sample(make_cell(source="auto"))
    assert node.started.source == "nvidia"
    shutil.rmtree(node.paths.directory)
    node.sample(make_cell(source="auto", ranks=3))
    assert (node.started.source, node.started.simulated) == ("simulated", True)


def test_auto_never_simulates_gpus_that_are_there(tmp_path, monkeypatch):
    def broken() -> None:
        raise TelemetryError("version mismatch")

    monkeypatch.setattr(choice, "NvidiaSource", broken)
    monkeypatch.setattr(choice, "_DEVICES_IN", tmp_path)
    with closing(choice.open_source(make_cell(source="auto"), NODE)) as source:
        assert source.name == "simulated"
    (tmp_path / "nvidia0").touch()
    with pytest.raises(TelemetryError, match="version mismatch"):
        choice.open_source(make_cell(source="auto"), NODE)


@pytest.mark.parametrize("source", ["nvidia", "auto"])
def test_a_gpu_that_is_lost_at_the_start_leaves_the_event_of_one_lost_later(node, source):
    node.say(uuid_error_1="15")
    assert "GPU is lost" in node.refusal(make_cell(source=source))
    (row,) = read_rows(node.paths.gpu_events(NODE))
    assert (row["gpu"], row["event"]) == ("1", "lost")
    (fault,), damaged = gpu_faults.find(node.paths)
    assert (fault.node, fault.gpu, damaged) == (NODE, 1, [])


@pytest.mark.parametrize("says", [{"uuid_error_1": "15"}, {"mig_1": "1"}])
def test_a_gpu_that_is_lost_or_divided_is_nothing_to_a_job_that_does_not_see_it(node, says):
    node.say(**says)
    node.sample(make_cell(source="nvidia", ranks=1), CUDA_VISIBLE_DEVICES="0")
    assert [(gpu["uuid"], gpu["mig_enabled"]) for gpu in node.started.gpus] == [
        ("GPU-aaaa-0", False)
    ]


def test_a_binding_that_returns_bytes_is_refused_with_the_remedy(monkeypatch):
    old = ModuleType("pynvml")
    old.__file__ = "/usr/lib/pynvml.py"
    old.NVMLError = RuntimeError  # type: ignore[attr-defined]
    old.nvmlInit = old.nvmlShutdown = lambda: None  # type: ignore[attr-defined]
    old.nvmlSystemGetDriverVersion = lambda: b"580.65.06"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", old)
    with pytest.raises(TelemetryError, match="nvidia-ml-py 12"):
        started_nvml()


STEP_S = 3.1
#: KiB/s in the first and in the second half of each step: nearly all goes by in the backward pass
LOW, HIGH = 1e6, 23e6
STEP_BYTES = STEP_S * (LOW + HIGH) / 2 * 1024
BURSTS = {
    # The counters are the integral of this, which the library otherwise takes for power.
    "power_1": f"square {LOW} {HIGH} {STEP_S}",
    "field_138_1": "integral 5e9",
    "field_139_1": "integral 7e9",
}


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_between_boundaries_of_steps_bytes_are_those_of_arithmetic(played, steps):
    played.say(**BURSTS)
    read = open_links("GPU-bbbb-1")
    played.set_time(2 * STEP_S)
    before = read()
    played.set_time((2 + steps) * STEP_S)
    after = read()
    for field in ("sent_bytes", "received_bytes"):
        rose = getattr(after, field) - getattr(before, field)
        assert rose == pytest.approx(steps * STEP_BYTES, rel=1e-6)


@pytest.mark.parametrize(
    ("uuid", "changes", "reason"),
    [
        (None, {}, "has no NVIDIA GPU"),
        ("GPU-cccc-2", {}, "GPU-cccc-2: Not Found"),
        ("GPU-bbbb-1", {"field_138": None}, "Not Supported"),
        ("GPU-bbbb-1", {"gpu_error_1": "15"}, "GPU is lost"),
    ],
)
def test_why_there_are_no_counters_is_said_at_once(played, uuid, changes, reason):
    played.say(**changes)
    with pytest.raises(UnreadableError, match=reason):
        open_links(uuid)
