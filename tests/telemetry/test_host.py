"""Readings of the node, from trees of files with known numbers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workflow_lib.telemetry.devices import host as host_module
from workflow_lib.telemetry.devices.host import Host
from workflow_lib.telemetry.devices.kernel import CpuUtilisation
from workflow_lib.telemetry.source import TelemetryError, Value

NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 99999999 1 0 0 0 0 0 0 99999999 1 0 0 0 0 0 0
  eno1: 1000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0
  eno2:30000 1 0 0 0 0 0 0 4000 1 0 0 0 0 0 0
 bond0: 31000 1 0 0 0 0 0 0 4200 1 0 0 0 0 0 0
   ib0: 777 1 0 0 0 0 0 0 888 1 0 0 0 0 0 0
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with two Ethernet ports in a bond, IP over InfiniBand and two InfiniBand ports."""
    write(tmp_path / "proc/stat", "cpu  100 20 30 800 50 0 0 0 7 7\ncpu0 1 2 3 4\n")
    write(tmp_path / "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
    write(tmp_path / "proc/net/dev", NETWORK)
    for name in ("eno1", "eno2"):
        (tmp_path / "sys/class/net" / name / "device").mkdir(parents=True)
        write(tmp_path / "sys/class/net" / name / "type", "1\n")
    write(tmp_path / "sys/class/net/bond0/type", "1\n")
    (tmp_path / "sys/class/net/ib0/device").mkdir(parents=True)
    write(tmp_path / "sys/class/net/ib0/type", "32\n")
    for card, received, sent in (("mlx5_0", 100, 25), ("mlx5_1", 1_000_000_000_000, 75)):
        counters = tmp_path / "sys/class/infiniband" / card / "ports/1/counters"
        write(counters / "port_rcv_data", f"{received}\n")
        write(counters / "port_xmit_data", f"{sent}\n")
    return tmp_path


def test_counters_are_summed_in_bytes(root):
    assert Host(root).read() == {
        "cpu_utilisation_percent": None,
        "memory_used_bytes": 600 * 1024,
        # eno1 and eno2; the bond would count both again
        "network_received_bytes": 31_000,
        "network_sent_bytes": 4_200,
        # four bytes a unit, beyond 32 bits
        "infiniband_received_bytes": 4_000_000_000_400,
        "infiniband_sent_bytes": 400,
    }


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (
            "system.slice/slurmstepd.scope/job_40",
            ("system.slice/slurmstepd.scope/job_7", "system.slice/slurmstepd.scope/job_41"),
        ),
        # With --cgroup-v1 each user has a group, and each controller all of them.
        (
            "memory/slurm/uid_1000/job_40",
            (
                *("memory/slurm/uid_1000/job_7", "memory/slurm/uid_0/job_41"),
                *("cpuset/slurm/uid_1000/job_7", "cpuset/slurm/uid_0/job_41"),
            ),
        ),
    ],
)
def test_other_jobs_are_counted_by_their_control_groups(root, own, others):
    groups = root / "sys/fs/cgroup"
    (groups / own / "step_0").mkdir(parents=True)
    (groups / own).parent.joinpath("system").mkdir()
    host = Host(root, job_id="40")
    assert host.read()["other_jobs"] == 0

    for other in others:
        (groups / other / "step_batch").mkdir(parents=True)
    assert host.read()["other_jobs"] == 2


def test_where_jobs_cannot_be_seen_their_number_is_unknown(root):
    assert "not a job" in Host(root).missing["other_jobs"]
    (root / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_4").mkdir(parents=True)
    host = Host(root, job_id="40")
    assert "no control group" in host.missing["other_jobs"]
    assert "other_jobs" not in host.read()


def test_cpu_utilisation_is_the_busy_share_since_the_reading_before(root):
    cpu = CpuUtilisation(root)
    assert cpu.share() is None
    # 60 user and 15 system ticks busy, 20 idle and 5 waiting for the disk: 75 of 100.
    write(root / "proc/stat", "cpu  160 20 45 820 55 0 0 0 7 7\n")
    assert cpu.share() == pytest.approx(0.75)
    assert cpu.share() is None  # no tick has passed


def test_a_node_without_infiniband_says_so(root):
    for port in (root / "sys/class/infiniband").glob("*/ports/1"):
        port.rename(root / port.parts[-3])
    host = Host(root)
    assert "no InfiniBand port" in host.missing["infiniband_sent_bytes"]
    assert "infiniband_sent_bytes" not in host.read()


def test_a_port_that_cannot_be_read_makes_the_sum_unknown(root):
    host = Host(root)
    write(root / "sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data", "down\n")
    values = host.read()
    assert "infiniband_sent_bytes" not in values
    assert values["infiniband_received_bytes"] == 4_000_000_000_400
    ((message, count),) = host.errors.items()
    assert message.startswith("infiniband_sent_bytes: ")
    assert count == 1


def test_an_interface_that_is_gone_makes_the_sums_unknown(root):
    host = Host(root)
    write(root / "proc/net/dev", "".join(NETWORK.splitlines(keepends=True)[:4]))
    values = host.read()
    assert (values["network_received_bytes"], values["network_sent_bytes"]) == (None, None)
    ((said, count),) = host.errors.items()
    assert "eno2" in said
    assert count == 1


def test_a_container_with_virtual_interfaces_only_counts_those(root):
    write(root / "proc/net/dev", "\n\n    lo: 9 0 0 0 0 0 0 0 9\n  veth0: 50 0 0 0 0 0 0 0 60\n")
    values = Host(root).read()
    assert (values["network_received_bytes"], values["network_sent_bytes"]) == (50, 60)


def test_loopback_alone_is_no_network(root):
    write(root / "proc/net/dev", "\n\n    lo: 9 0 0 0 0 0 0 0 9\n")
    host = Host(root)
    assert "but loopback" in host.missing["network_sent_bytes"]
    assert host.read()["network_sent_bytes"] is None


def test_an_unexpected_file_is_refused_by_name(root):
    write(root / "proc/meminfo", "MemTotal: 1000 kB\n")
    with pytest.raises(TelemetryError, match=r"proc/meminfo lacks"):
        Host(root).read()


def sensor(root: Path, device: int, name: str, **files: object) -> Path:
    """A hwmon device of a driver, with its files."""
    directory = root / f"sys/class/hwmon/hwmon{device}"
    write(directory / "name", f"{name}\n")
    for file, content in files.items():
        write(directory / file, f"{content}\n")
    return directory


def package(root: Path, zone: str, name: str, energy_uj: int, range_uj: int = 1_000_000) -> Path:
    """A zone of RAPL."""
    directory = root / "sys/class/powercap" / zone
    write(directory / "name", f"{name}\n")
    write(directory / "energy_uj", f"{energy_uj}\n")
    write(directory / "max_energy_range_uj", f"{range_uj}\n")
    return directory


def test_the_hottest_cpu_package_counts_and_no_core(root):
    sensor(root, 0, "coretemp", temp1_label="Package id 0", temp1_input=61000)
    sensor(
        root,
        1,
        "coretemp",
        temp1_label="Package id 1",
        temp1_input=64500,
        temp2_label="Core 0",
        temp2_input=80000,
    )
    sensor(root, 2, "nvme", temp1_label="Composite", temp1_input=90000)
    assert Host(root).read()["cpu_temperature_c"] == 64.5


@pytest.mark.parametrize("label", ["Tctl", None])
def test_an_epyc_tells_its_control_temperature(root, label):
    labels = {} if label is None else {"temp1_label": label}
    sensor(root, 0, "k10temp", temp1_input=55125, **labels)
    sensor(root, 0, "k10temp", temp3_label="Tccd1", temp3_input=70000)
    assert Host(root).read()["cpu_temperature_c"] == 55.125


def test_a_cpu_sensor_without_a_reading_is_counted(root):
    device = sensor(root, 0, "k10temp", temp1_label="Tctl", temp1_input=55000)
    host = Host(root)
    write(device / "temp1_input", "0\n")
    assert "cpu_temperature_c" not in host.read()
    ((said, count),) = host.errors.items()
    assert said.startswith("cpu_temperature_c: ")
    assert count == 1


def test_cpu_energy_is_that_of_the_packages_since_the_beginning(root):
    first = package(root, "intel-rapl:0", "package-0", 900_000)
    package(root, "intel-rapl:0:0", "core", 5)
    second = package(root, "intel-rapl:1", "package-1", 100_000)
    package(root, "intel-rapl:2", "psys", 7)
    package(root, "intel-rapl-mmio:0", "package-0", 900_000)
    host = Host(root)
    assert host.read()["cpu_energy_j"] == 0.0
    write(first / "energy_uj", "50000\n")  # over the end of its range: 0.15 J more
    write(second / "energy_uj", "400000\n")  # 0.3 J more
    assert host.read()["cpu_energy_j"] == pytest.approx(0.45)
    write(first / "energy_uj", "60000\n")
    assert host.read()["cpu_energy_j"] == pytest.approx(0.46)


def test_a_rapl_counter_that_steps_back_shows_and_does_not_go_round(root):
    range_uj = 262_143_328_850
    zone = package(root, "intel-rapl:0", "package-0", 5_000_000, range_uj)
    host = Host(root)
    write(zone / "energy_uj", "4999990\n")
    assert host.read()["cpu_energy_j"] == pytest.approx(-1e-5)
    write(zone / "energy_uj", f"{range_uj - 40_000_000}\n")
    before_j = host.read()["cpu_energy_j"]
    assert before_j is not None
    write(zone / "energy_uj", "60000000\n")  # 100 J over the end of its range
    assert host.read()["cpu_energy_j"] == pytest.approx(before_j + 100)
    write(zone / "energy_uj", "0\n")  # a restart, 60 J back
    assert host.read()["cpu_energy_j"] == pytest.approx(before_j + 40)


def test_energy_that_may_not_be_opened_is_missing_with_this_reason(root, monkeypatch):
    counter = package(root, "intel-rapl:0", "package-0", 1) / "energy_uj"
    allowed = os.open

    def refuse(path: os.PathLike[str], flags: int) -> int:
        if Path(path) == counter:
            raise PermissionError(13, "Permission denied", str(path))
        return allowed(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    assert "root alone" in Host(root).missing["cpu_energy_j"]


def test_what_a_bare_node_lacks_is_named_with_the_reason(root):
    missing = Host(root).missing
    assert missing["cpu_temperature_c"].startswith("no CPU sensor")
    assert missing["cpu_energy_j"].startswith("no CPU package")
    for part in ("no ACPI", "/dev/ipmi0", "Redfish"):
        assert part in missing["node_power_w"]
    assert missing.keys() == {
        "cpu_temperature_c",
        "cpu_energy_j",
        "node_power_w",
        "inlet_temperature_c",
        "fan_speed_rpm",
        "other_jobs",
    }


def next_reading(host: Host, *columns: str) -> dict[str, Value]:
    """Read until the background has told all the columns; what it said of each."""
    found: dict[str, Value] = {}
    while found.keys() != set(columns):
        found |= {name: value for name, value in host.read().items() if name in columns}
        time.sleep(0.01)
    return found


def test_the_boards_sensors_come_from_hwmon(root):
    # ACPI's files are in the device behind hwmon's.
    meter = root / "sys/class/hwmon/hwmon0/device"
    write(meter / "name", "power_meter\n")
    write(meter / "power1_average", "450500000\n")
    sensor(root, 1, "board", temp1_label="Outlet", temp1_input=50000)
    sensor(root, 1, "board", temp2_label="Inlet Temp", temp2_input=23500)
    sensor(root, 1, "board", fan1_input=4200, fan2_input=9100)
    host = Host(root)
    assert host.missing.keys() == {"cpu_temperature_c", "cpu_energy_j", "other_jobs"}
    assert next_reading(host, "node_power_w", "inlet_temperature_c", "fan_speed_rpm") == {
        "node_power_w": 450.5,
        "inlet_temperature_c": 23.5,
        "fan_speed_rpm": 9100.0,
    }
    # Told once: the rows between two readings have none.
    assert "node_power_w" not in host.read()
    host.close()


def test_of_several_power_meters_none_is_the_nodes(root):
    for device in (0, 1):
        sensor(root, device, "power_meter", power1_average=100_000_000)
    assert Host(root).missing["node_power_w"].startswith("2 ACPI")


IPMITOOL = """\
#!/bin/sh
case "$*" in
"dcmi power reading") cat <<'END'

    Instantaneous power reading:                  1830 Watts
    Minimum during sampling period:                 12 Watts
    Power reading state is:                   activated
END
;;
"sdr type temperature") cat <<'END'
CPU1 Temp        | 0Eh | ok  |  3.1 | 64 degrees C
Inlet Temp       | 05h | ok  |  7.1 | 22 degrees C
Exhaust Temp     | 01h | ok  |  7.1 | 41 degrees C
GPU Inlet Temp   | 02h | ns  | 11.1 | No Reading
END
;;
"sdr type fan") cat <<'END'
Fan1A RPM        | 30h | ok  |  7.1 | 8160 RPM
Fan2A RPM        | 31h | ok  |  7.1 | 12240 RPM
Fan Redundancy   | 75h | ok  |  7.1 | Fully Redundant
END
;;
esac
"""


@pytest.fixture
def ipmitool(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ipmitool that a test can change, and a device to ask; its threads end with the test."""
    write(root / "dev/ipmi0", "")
    tool = tmp_path / "bin/ipmitool"
    write(tool, IPMITOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    monkeypatch.setattr(host_module, "_IPMI_PERIOD_S", 0.05)
    before = threading.active_count()
    yield tool
    assert threading.active_count() == before


def test_ipmi_tells_what_hwmon_lacks(root, ipmitool):
    sensor(root, 0, "board", fan1_input=5000)
    host = Host(root)
    assert "node_power_w" not in host.missing
    found = next_reading(host, "node_power_w", "inlet_temperature_c", "fan_speed_rpm")
    assert found == {"node_power_w": 1830.0, "inlet_temperature_c": 22.0, "fan_speed_rpm": 5000.0}
    host.close()


def test_the_fastest_fan_counts(root, ipmitool):
    host = Host(root)
    assert next_reading(host, "fan_speed_rpm") == {"fan_speed_rpm": 12240.0}
    host.close()


def test_an_ipmitool_that_fails_is_counted_and_asked_again(root, ipmitool):
    write(ipmitool, "#!/bin/sh\necho 'Could not open device' >&2\nexit 1\n")
    host = Host(root)
    message = "node_power_w: ipmitool dcmi power reading ended with 1: Could not open device"
    while not host.errors[message]:
        host.read()
        time.sleep(0.01)
    write(ipmitool, IPMITOOL)
    assert next_reading(host, "node_power_w") == {"node_power_w": 1830.0}
    host.close()


def test_an_ipmitool_that_hangs_holds_nobody_up(root, ipmitool):
    started = ipmitool.with_name("started")
    write(ipmitool, f"#!/bin/sh\necho $$ > {started}\nexec sleep 600\n")
    host = Host(root)
    while not (started.exists() and started.read_text(encoding="ascii")):
        assert "node_power_w" not in host.read()  # which returns
        time.sleep(0.01)
    host.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text(encoding="ascii")), 0)


def test_without_the_tool_or_the_right_there_is_no_ipmi(root, ipmitool, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: "ipmi0" not in str(path))
    assert "root alone" in Host(root).missing["node_power_w"]
    monkeypatch.setenv("PATH", "/nowhere")
    assert "ipmitool" in Host(root).missing["node_power_w"]
