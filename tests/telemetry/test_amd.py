"""The AMD source, through the real binding, against a library that plays ROCm's. Real GPUs have not
been tried.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.cells import NODE, make_cell, read_rows, script_of, wait_for
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.telemetry.devices.amd import AmdSource
from workflow_lib.telemetry.source import TelemetryError

BINDING = importlib.util.find_spec("amdsmi")
if BINDING is None or BINDING.origin is None:
    pytest.skip("needs the package amdsmi", allow_module_level=True)
if shutil.which("gcc") is None:
    pytest.skip("the playing AMD SMI library needs gcc", allow_module_level=True)

Start = Callable[..., subprocess.Popen[str]]
Build = Callable[..., Path]
#: J in a unit of the energy accumulator: 15.259 µJ
UNIT_J = 1 / 65536

#: two packages of MI250, four dies; the odd dies' power and energy are 0
MI250: Mapping[str, str] = script_of("fake_amd_smi_mi250.txt")
#: two MI300X: no edge temperature, no momentary throttle status; accumulated times instead
MI300: Mapping[str, str] = {
    **{key: value for key, value in MI250.items() if "." not in key and key != "energy"},
    "count": "2",
    "name": "AMD Instinct MI300X",
    "bus.0": "0x05",
    "bus.1": "0x26",
    "cap": "750",
    "power": "717",
    "power_field": "current",
    "temperature_hotspot": "70",
    "temperature_edge": "0xffff",
    "throttle_status": "0xffffffffffffffff",
    "energy_base": "1000000",
    "xgmi_read": "100,200",
    "xgmi_write": "5,7",
}


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a ROCm directory with the playing library; gcc's flags make its variants."""
    built: dict[tuple[tuple[str, ...], bool], Path] = {}

    def rocm(*flags: str, whole: bool = True) -> Path:
        if (flags, whole) not in built:
            root = tmp_path_factory.mktemp("rocm")
            (root / "lib").mkdir()
            # The binding looks every function up when it is imported.
            assert BINDING is not None
            assert BINDING.origin is not None
            text = Path(BINDING.origin).with_name("amdsmi_wrapper.py").read_text(encoding="utf-8")
            names = sorted(set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", text)))
            others = root / "others.c"
            others.write_text(
                "".join(
                    f"__attribute__((weak)) int {name}(void) {{ return 2; }}\n" for name in names
                )
                if whole
                else ""
            )
            source = Path(__file__).with_name("fake_amd_smi.c")
            output = root / "lib/libamd_smi.so"
            command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(output)]
            subprocess.run([*command, str(source), str(others)], check=True)
            built[flags, whole] = root
        return built[flags, whole]

    return rocm


class Node:
    """A node whose AMD SMI says what ``say`` was last given."""

    def __init__(self, script: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script = script
        self._build = build
        self._monkeypatch = monkeypatch
        self._said: dict[str, str] = {}

    def say(self, gpus: Mapping[str, str] | None = None, **changes: str | float | None) -> None:
        """Begin anew with ``gpus``, or change keys ("__" stands for "."); None takes one away."""
        self._said = self._said if gpus is None else dict(gpus)
        for name, value in changes.items():
            key = name.replace("__", ".")
            if value is None:
                del self._said[key]
            else:
                self._said[key] = str(value)
        new = self.script.with_suffix(".new")
        new.write_text("".join(f"{k} {v}\n" for k, v in self._said.items()), encoding="utf-8")
        new.replace(self.script)

    def open(self, gpus_per_package: int, *flags: str, whole: bool = True) -> AmdSource:
        """The source, through a freshly imported binding."""
        rocm = self._build(*flags, whole=whole)
        self._monkeypatch.setenv("ROCM_PATH", str(rocm))
        self._monkeypatch.setenv("FAKE_AMD_SMI", str(self.script))
        forget_amdsmi()
        return AmdSource(gpus_per_package)


def forget_amdsmi() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "amdsmi"]:
        del sys.modules[name]


@pytest.fixture
def node(tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Nothing is said yet, and no variable of the caller's hides a GPU."""
    for variable in ("ROCM_HOME", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield Node(tmp_path / "amd_smi.txt", build, monkeypatch)
    forget_amdsmi()


def test_one_die_of_a_package_has_its_power_and_energy(node):
    node.say(MI250)
    source = node.open(2)
    assert [source.read(gpu, 0.0).get("power_w") for gpu in range(4)] == [94, None, 98, None]
    counters = [source.read_counters(gpu, 0.0, everything=True) for gpu in range(4)]
    # 6 553 600 units of 2^-16 J
    assert [row.get("energy_j") for row in counters] == [100.0, None, 200.0, None]
    assert [gpu["package"] for gpu in source.gpus] == [0, 0, 1, 1]
    assert [gpu["reports_power"] for gpu in source.gpus] == [True, False, True, False]
    assert [gpu["pci_bus_id"] for gpu in source.gpus] == [
        f"0000:{bus}:00.0" for bus in ("11", "14", "2e", "32")
    ]
    assert [gpu["power_limit_w"] for gpu in source.gpus] == [500.0, None, 500.0, None]
    assert source.power_limits_w() == [500.0, None, 500.0, None]
    assert source.errors == {}


def test_every_reading_of_an_mi250_arrives(node):
    node.say(MI250)
    source = node.open(2)
    assert source.read(1, 0.0) == {
        "temperature_c": 62,
        "sm_clock_mhz": 1700,
        "memory_clock_mhz": 1600,
        "utilisation_percent": 99,
        "event_reasons": 0,
    }
    assert source.read_counters(0, 0.0, everything=True) == {
        "energy_j": 100.0,
        "edge_temperature_c": 45,
        "memory_temperature_c": 55,
        "thermal_margin_c": 100 - 61,
        "memory_used_bytes": 10_737_418_240,
        "ecc_corrected_errors": 3,
        "ecc_uncorrected_errors": 1,
    }
    assert source.gpus[0]["name"] == "AMD INSTINCT MI250 (MCM) OAM AC MBA"
    assert source.gpus[0]["serial"] == "0x0000000000001234"
    assert source.gpus[0]["driver_version"] == "6.8.5"


def test_what_an_mi250_cannot_tell_is_named_with_the_reason(node):
    node.say(MI250)
    missing = node.open(2).missing
    assert "no throttle times" in missing["throttle_power_cap_s"]
    assert "xGMI" in missing["gpu_link_sent_bytes"]
    assert "neither bytes" in missing["pcie_sent_bytes"]
    assert "no power samples" in missing["power_mw"]
    assert "event_reasons" not in missing
    assert "power_w" not in missing


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (0, 0),
        (1 << 1, 0x4),  # a package power limit
        (1 << 17, 0x8),  # a current limit
        (1 << 36, 0x20),  # a temperature
        (1 << 46, 0x40),  # PROCHOT
        (1 << 1 | 1 << 36, 0x24),
        (1 << 60, 0),  # reasons that are no throttling
        ((1 << 64) - 2, 0x6C),  # all but the first
    ],
)
def test_the_throttle_status_is_told_in_nvmls_bits(node, status, event):
    node.say(MI250)
    source = node.open(2)
    node.say(throttle_status=status)
    assert source.read(0, 0.0)["event_reasons"] == event


def test_an_mi300_is_a_package_of_one(node):
    node.say(MI300)
    source = node.open(1)
    assert [source.read(gpu, 0.0)["power_w"] for gpu in (0, 1)] == [717, 717]
    assert [gpu["power_limit_w"] for gpu in source.gpus] == [750.0, 750.0]
    assert "momentary throttle status" in source.missing["event_reasons"]
    assert "temperature_edge" in source.missing["edge_temperature_c"]


def test_link_bytes_are_summed_over_links_and_directions_kept_apart(node):
    node.say(MI300)
    row = node.open(1).read_counters(0, 0.0, everything=True)
    assert row["gpu_link_received_bytes"] == 300 * 1024
    assert row["gpu_link_sent_bytes"] == 12 * 1024


def test_throttle_times_are_the_shares_of_the_firmwares_cycles(node):
    shares = {"ppt_share": 0.25, "prochot_share": 0, "socket_share": 0.5}
    node.say(MI300, epoch=f"{time.time() - 100:.3f}", cycles_hz=1e6, **shares)
    source = node.open(1)
    columns = ("throttle_power_cap_s", "throttle_sw_thermal_s", "throttle_hw_thermal_s")
    times: list[float] = []
    rows = []
    for _ in range(2):
        times.append(time.time())
        rows.append(source.read_counters(0, 0.0, everything=True))
        times.append(time.time())
        time.sleep(0.2)
    shortest, longest = times[2] - times[1], times[3] - times[0]
    for column, share in zip(columns, (0.25, 0.5, 0.0), strict=True):
        before, after = (row[column] for row in rows)
        assert isinstance(before, float)
        assert isinstance(after, float)
        # One cycle is a millionth of a second.
        assert share * shortest - 1e-5 <= after - before <= share * longest + 1e-5


def test_throttle_residencies_that_run_backwards_are_no_times(node):
    node.say(MI300, epoch=f"{time.time() - 100:.3f}", cycles_hz=1e6, ppt_share=1, prochot_share=0)
    source = node.open(1)
    node.say(ppt_share=0.5)  # as after a reset of the GPU
    assert source.read_counters(0, 0.0, everything=True)["throttle_power_cap_s"] is None
    assert "ran backwards" in next(iter(source.errors))
    assert source.read_counters(0, 0.0, everything=True)["throttle_power_cap_s"] is not None


@pytest.mark.parametrize(
    "units",
    [
        6_553_600,  # stuck: the same again
        17,  # wrapped, or reset: smaller than before
        2**63,  # beyond what a signed reader sees
    ],
)
def test_the_energy_accumulator_is_told_as_it_is(node, units):
    # Whether it moves and does not run backwards is for the check of coverage to say.
    node.say(MI250)
    source = node.open(2)
    node.say(energy__0=units)
    row = source.read_counters(0, 0.0, everything=True)
    assert row["energy_j"] == (units * UNIT_J if units < 2**60 else None)


def test_the_energy_counter_of_rocm_6_0_to_6_2_is_known_by_its_own_name(node, monkeypatch):
    node.say(MI250)
    node.open(2).close()
    count = sys.modules["amdsmi"].amdsmi_get_energy_count

    def older(handle: Any) -> dict[str, Any]:
        answer = count(handle)
        return {"power": answer.pop("energy_accumulator"), **answer}

    monkeypatch.setattr(sys.modules["amdsmi"], "amdsmi_get_energy_count", older)
    with closing(AmdSource(2)) as source:
        assert source.read_counters(0, 0.0, everything=True)["energy_j"] is not None


def test_a_call_that_fails_leaves_its_columns_empty_and_is_counted(node):
    node.say(MI250)
    source = node.open(2)
    node.say(**{"metrics.error.0": "21"})
    row = source.read(0, 0.0)
    assert set(row.values()) == {None}
    assert source.read(2, 0.0)["power_w"] == 98
    (message,) = {key.split(": ", 1)[1] for key in source.errors}
    assert "21" in message
    node.say(**{"metrics.error.0": "0"})
    assert source.read(0, 0.0)["power_w"] == 94


def test_a_sentinel_in_mid_run_is_no_reading(node):
    node.say(MI250)
    source = node.open(2)
    node.say(temperature_hotspot__0="0xffff", power__0="-1", energy__0=2**64 - 1)
    row = source.read(0, 0.0)
    assert row["temperature_c"] is None
    assert row["power_w"] is None
    assert source.read_counters(0, 0.0, everything=True)["energy_j"] is None
    assert sum(source.errors.values()) == 4  # the margin needs the temperature as well


def test_a_call_that_is_not_permitted_costs_only_its_own_columns(node):
    node.say(MI250, **{"ecc.error": "10", "cap.error": "10"})
    source = node.open(2)
    assert "Permission" in source.missing["ecc_corrected_errors"]
    assert source.gpus[0]["power_limit_w"] is None
    assert source.read(0, 0.0)["power_w"] == 94


@pytest.mark.parametrize(
    ("gpus", "changes", "gpus_per_package", "named"),
    [
        (MI300, {}, 2, "GPUs 0 and 1"),  # each has its own power
        (MI250, {}, 1, "GPU 1"),  # has no power
        (MI250, {"count": 3}, 2, "3 GPUs"),
        (MI300, {"bus__1": "0x05", "function__1": 1}, 1, "partitions"),
    ],
)
def test_contradicted_packages_are_refused(node, gpus, changes, gpus_per_package, named):
    node.say(gpus, **changes)
    with pytest.raises(TelemetryError, match=named):
        node.open(gpus_per_package)


def test_the_sensor_is_where_the_driver_has_it(node):
    node.say(MI250, power__0=0, energy__0=0, power__1=94, energy__1=65536)
    source = node.open(2)
    assert [gpu["reports_power"] for gpu in source.gpus] == [False, True, True, False]
    assert source.read_counters(1, 0.0, everything=True)["energy_j"] == 1.0


def test_the_job_sees_one_package(node, monkeypatch):
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,3")
    node.say(MI250)
    source = node.open(2)
    assert [gpu["index"] for gpu in source.gpus] == [2, 3]
    assert source.read(0, 0.0)["temperature_c"] == 63


def test_a_die_without_its_packages_sensor_is_refused(node, monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1,3")
    node.say(MI250)
    with pytest.raises(TelemetryError, match="GPU 3 shares"):
        node.open(2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init.error": "34"}, "AMD SMI did not start: .*Driver not loaded"),
        ({"handles.error": "10"}, "could not describe this node's GPUs: .*Permission"),
        ({"serial": "not a number"}, "amdsmi Python package, of the same version .*ValueError"),
    ],
)
def test_a_library_that_does_not_answer_is_refused(node, changes, message):
    node.say(MI250, **changes)
    with pytest.raises(TelemetryError, match=message):
        node.open(2)


@pytest.mark.parametrize(
    ("flags", "whole", "named"),
    [
        (("-DLONGER",), True, "bytes of GPU"),
        (("-DSWAPPED",), True, "different versions"),
        ((), False, r"\(AttributeError"),  # functions of the binding are missing
    ],
)
def test_a_library_of_another_version_than_the_bindings_is_refused(node, flags, whole, named):
    node.say(MI250)
    with pytest.raises(TelemetryError, match=named):
        node.open(2, *flags, whole=whole)


def test_without_rocms_library_it_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.delenv("ROCM_HOME", raising=False)
    forget_amdsmi()
    with pytest.raises(TelemetryError, match=r"KeyError: 'libamd_smi\.so' "):
        AmdSource(2)
    assert capsys.readouterr().out == ""


def test_the_sampler_writes_what_the_source_reads(tmp_path, build, node, sampler):
    node.say(MI250)
    paths = RunPaths(tmp_path / "run")
    cell = make_cell(ranks=4, source="amd", gpu="MI250", gpus_per_package=2)
    process = sampler(paths.directory, cell, ROCM_PATH=str(build()), FAKE_AMD_SMI=str(node.script))
    wait_for(paths.telemetry_ready(NODE), process)
    process.terminate()
    assert process.wait() == 0
    rows = read_rows(paths.gpu_samples(NODE))
    assert [row["power_w"] for row in rows[:4]] == ["94", "", "98", ""]
    assert [row["temperature_c"] for row in rows[:4]] == ["61", "62", "63", "64"]
    counters = read_rows(paths.gpu_counters(NODE))
    assert [float(row["energy_j"] or "nan") for row in counters[:3:2]] == [100.0, 200.0]
    start = read_record(paths.telemetry_start(NODE), TelemetryStart)
    assert start.source == "amd"
    assert "no throttle times" in start.missing["throttle_power_cap_s"]
