"""The NVIDIA source, through the real binding, against a library that plays NVML."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.telemetry.cells import NODE, make_cell, read_rows, wait_for
from workflow_lib import records

pytest.importorskip("pynvml")
if shutil.which("gcc") is None:
    pytest.skip("the playing NVML library needs gcc", allow_module_level=True)

Start = Callable[..., subprocess.Popen[str]]

#: two H200; ids of the slowdown counters as drivers 575 to 580.65 have them
H200: Mapping[str, str] = {
    "count": "2",
    "driver": "580.65.06",
    "name": "NVIDIA H200",
    "serial": "1650524",
    "uuid.0": "GPU-aaaa-0",
    "uuid.1": "GPU-bbbb-1",
    "limit": "700000",
    "power.0": "79483",
    "power.1": "698125",
    "temperature": "35",
    "clock.sm": "1980",
    "clock.memory": "3201",
    "utilisation": "100",
    "reasons": "4",
    "energy": "123456789",
    "used": "4294967296000",
    "field.74": "5000000000",
    "field.82": "48",
    "field.82.type": "1",
    "field.251": "2500000000",
    "field.252": "0",
    "field.253": "125000000",
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a freshly built libnvidia-ml.so.1."""
    directory = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    output = directory / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(output), str(source)], check=True
    )
    return directory


class Node:
    """A node whose NVML says what ``say`` was last given."""

    def __init__(self, directory: Path, library: Path, start: Start) -> None:
        self.paths = records.RunPaths(directory / "run")
        self._script = directory / "nvml.txt"
        self._library = library
        self._start = start

    def say(self, **changes: str | None) -> None:
        """Change keys of H200 ("_" stands for "."); None takes a key away."""
        keys = dict(H200) | {k.replace("_", "."): v for k, v in changes.items() if v is not None}
        for key, value in changes.items():
            if value is None:
                del keys[key.replace("_", ".")]
        new = self._script.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in keys.items()), encoding="utf-8")
        new.replace(self._script)

    def start(self, cell: records.Cell, **environment: str) -> subprocess.Popen[str]:
        return self._start(
            self.paths.directory,
            cell,
            FAKE_NVML=str(self._script),
            LD_LIBRARY_PATH=str(self._library),
            **environment,
        )

    def sample(self, cell: records.Cell, seconds: float = 0.3, **environment: str) -> None:
        process = self.start(cell, **environment)
        wait_for(self.paths.telemetry_ready(NODE), process)
        time.sleep(seconds)
        process.terminate()
        assert process.wait(10) == 0, process.communicate()[1]

    def refusal(self, cell: records.Cell, **environment: str) -> str:
        process = self.start(cell, **environment)
        _, message = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "Traceback" not in message
        assert message.count("\n") == 1
        return message

    @property
    def rows(self) -> list[dict[str, str]]:
        return read_rows(self.paths.gpu_samples(NODE))

    @property
    def started(self) -> records.TelemetryStart:
        return records.read_record(self.paths.telemetry_start(NODE), records.TelemetryStart)

    @property
    def ended(self) -> records.TelemetryEnd:
        return records.read_record(self.paths.telemetry_end(NODE), records.TelemetryEnd)


@pytest.fixture
def node(tmp_path: Path, library: Path, sampler: Start) -> Node:
    return Node(tmp_path, library, sampler)


CELL = make_cell(source="nvidia")


def test_every_column_is_in_its_unit(node: Node) -> None:
    node.say()
    node.sample(CELL)
    first = node.rows[0]
    times = {name: first.pop(name) for name in ("unix_time_s", "read_cost_s")}
    assert first == {
        "gpu": "0",
        "power_w": "79.483",
        "energy_j": "123456.789",
        "temperature_c": "35",
        "memory_temperature_c": "48",
        "sm_clock_mhz": "1980",
        "memory_clock_mhz": "3201",
        "utilisation_percent": "100",
        "memory_used_bytes": "4294967296000",
        "event_reasons": "4",
        "throttle_power_cap_s": "5.0",
        "throttle_sw_thermal_s": "2.5",
        "throttle_hw_thermal_s": "0.0",
        "throttle_power_brake_s": "0.125",
    }
    assert abs(float(times["unix_time_s"]) - time.time()) < 60
    assert 0 < float(times["read_cost_s"]) < 0.1
    assert node.rows[1]["power_w"] == "698.125"
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
    }


def test_costly_readings_come_once_a_second_and_not_for_all_gpus_at_once(node: Node) -> None:
    node.say()
    node.sample(CELL, seconds=2.5)
    costly = [row for row in node.rows if row["energy_j"]]
    ticks = len(node.rows) // 2
    assert 45 <= ticks <= 56  # 20 Hz for 2.5 s
    # First and last tick read both GPUs; in between each is read every twentieth tick.
    assert [row["gpu"] for row in costly[:3]] == ["0", "1", "1"]
    assert 8 <= len(costly) <= 10
    assert {row["unix_time_s"] for row in costly} == {
        row["unix_time_s"] for row in node.rows if row["memory_temperature_c"]
    }
    assert all(row["power_w"] and row["throttle_sw_thermal_s"] for row in node.rows)


def test_slowdown_counters_are_found_where_later_drivers_have_them(node: Node) -> None:
    # There 251 to 253 are power-smoothing settings: small numbers of another type.
    node.say(
        driver="580.95.05",
        field_251="1", field_251_type="1", field_252="0", field_252_type="1",
        field_253="0", field_253_type="1",
        field_269="3000000000", field_270="0", field_271="7000000000",
    )  # fmt: skip
    node.sample(CELL)
    assert node.rows[0]["throttle_sw_thermal_s"] == "3.0"
    assert node.rows[0]["throttle_power_brake_s"] == "7.0"
    assert node.started.missing.keys() & set(node.rows[0]) == set()


def test_the_driver_version_decides_where_both_sets_of_ids_answer(node: Node) -> None:
    late = {"field_269": "9000000000", "field_270": "0", "field_271": "0"}
    node.say(**late)
    node.sample(CELL)
    assert node.rows[0]["throttle_sw_thermal_s"] == "2.5"
    shutil.rmtree(node.paths.directory)
    node.say(driver="590.44", **late)
    node.sample(CELL)
    assert node.rows[0]["throttle_sw_thermal_s"] == "9.0"


def test_a_driver_without_slowdown_counters_leaves_the_columns_empty(node: Node) -> None:
    node.say(driver="550.90", field_251=None, field_252=None, field_253=None)
    node.sample(CELL)
    assert node.rows[0]["throttle_power_cap_s"] == "5.0"
    assert {row["throttle_hw_thermal_s"] for row in node.rows} == {""}
    assert node.started.missing["throttle_hw_thermal_s"] == (
        "driver 550.90 has no cumulative slowdown counters"
    )


def test_an_unsupported_reading_is_empty_with_its_reason(node: Node) -> None:
    node.say(field_82=None, reasons=None)
    node.sample(CELL)
    assert {row["memory_temperature_c"] for row in node.rows} == {""}
    assert {row["event_reasons"] for row in node.rows} == {""}
    assert node.started.missing["memory_temperature_c"] == "Not Supported"
    assert node.started.missing["event_reasons"] == "Not Supported"
    assert node.ended.errors == {}


def test_a_reading_that_only_one_gpu_lacks_names_it(node: Node) -> None:
    node.say(**{"energy.error.1": "3"})
    node.sample(CELL)
    assert node.started.missing["energy_j"] == "on GPU 1 only: Not Supported"
    assert {row["energy_j"] for row in node.rows if row["gpu"] == "1"} == {""}
    assert node.rows[0]["energy_j"] == "123456.789"


def test_a_failure_in_mid_run_is_an_empty_field_and_counted(node: Node) -> None:
    node.say()
    process = node.start(CELL)
    wait_for(node.paths.telemetry_ready(NODE), process)
    node.say(**{"power.error.1": "15", "temperature": "0"})
    time.sleep(0.5)
    node.say()
    time.sleep(0.3)
    process.terminate()
    assert process.wait(10) == 0
    second = [row["power_w"] for row in node.rows if row["gpu"] == "1"]
    assert (second[0], second[-1]) == ("698.125", "698.125")
    lost = second.count("")
    assert lost >= 5
    assert all(row["power_w"] == "79.483" for row in node.rows if row["gpu"] == "0")
    # A working GPU is never at 0 °C: that is a fault and not a reading.
    cold = sum(row["temperature_c"] == "" for row in node.rows)
    assert {row["temperature_c"] for row in node.rows} == {"", "35"}
    assert node.ended.errors == {
        "power_w: GPU is lost": lost,
        "temperature_c: the driver returned 0": cold,
    }


@pytest.mark.parametrize("visible", ["1", "GPU-bbbb", "1,-1,0"])
def test_only_gpus_that_the_job_sees_are_sampled(node: Node, visible: str) -> None:
    node.say()
    node.sample(make_cell(source="nvidia", ranks=1), CUDA_VISIBLE_DEVICES=visible)
    assert {(row["gpu"], row["power_w"]) for row in node.rows} == {("0", "698.125")}
    assert [(gpu["uuid"], gpu["index"]) for gpu in node.started.gpus] == [("GPU-bbbb-1", 1)]


def test_too_few_gpus_are_refused(node: Node) -> None:
    node.say()
    message = node.refusal(CELL, CUDA_VISIBLE_DEVICES="0")
    assert "nvidia shows 1 GPUs, but 2 ranks run on this node" in message
    assert not node.paths.telemetry_ready(NODE).exists()


def test_other_gpus_than_the_platforms_are_refused(node: Node) -> None:
    node.say(name="NVIDIA H100 80GB HBM3")
    assert "GPU 0 is 'NVIDIA H100 80GB HBM3'" in node.refusal(CELL)


def test_a_gpu_without_power_is_refused(node: Node) -> None:
    node.say(power_1=None)
    message = node.refusal(CELL)
    assert "GPU 1 (NVIDIA H200) reports no power: Not Supported" in message


def test_a_node_without_a_driver_is_refused(tmp_path: Path, sampler: Start) -> None:
    process = sampler(tmp_path, CELL, LD_LIBRARY_PATH=str(tmp_path))
    _, message = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "NVML did not start" in message


def test_auto_takes_the_gpus_where_there_are_enough(node: Node) -> None:
    node.say()
    node.sample(make_cell(source="auto"))
    assert node.started.source == "nvidia"
    shutil.rmtree(node.paths.directory)
    node.sample(make_cell(source="auto", ranks=3))
    assert (node.started.source, node.started.simulated) == ("simulated", True)
