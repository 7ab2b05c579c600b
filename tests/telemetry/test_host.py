"""Readings of the node, from trees of files with known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflow_lib.telemetry.host import CpuUtilisation, Host
from workflow_lib.telemetry.source import TelemetryError

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


def test_counters_are_summed_in_bytes(root: Path) -> None:
    host = Host(root)
    assert host.missing == {}
    assert host.read() == {
        "cpu_utilisation_percent": None,
        "memory_used_bytes": 600 * 1024,
        # eno1 and eno2; the bond would count both again
        "network_received_bytes": 31_000,
        "network_sent_bytes": 4_200,
        # four bytes a unit, beyond 32 bits
        "infiniband_received_bytes": 4_000_000_000_400,
        "infiniband_sent_bytes": 400,
    }


def test_cpu_utilisation_is_the_busy_share_since_the_reading_before(root: Path) -> None:
    cpu = CpuUtilisation(root)
    assert cpu.share() is None
    # 60 user and 15 system ticks busy, 20 idle and 5 waiting for the disk: 75 of 100.
    write(root / "proc/stat", "cpu  160 20 45 820 55 0 0 0 7 7\n")
    assert cpu.share() == pytest.approx(0.75)
    assert cpu.share() is None  # no tick has passed


def test_a_node_without_infiniband_says_so(root: Path) -> None:
    for port in (root / "sys/class/infiniband").glob("*/ports/1"):
        port.rename(root / port.parts[-3])
    host = Host(root)
    assert host.missing["infiniband_sent_bytes"] == (
        "no InfiniBand port under /sys/class/infiniband"
    )
    assert host.read()["infiniband_sent_bytes"] is None


def test_a_port_that_cannot_be_read_makes_the_sum_unknown(root: Path) -> None:
    host = Host(root)
    (root / "sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data").unlink()
    values = host.read()
    assert values["infiniband_sent_bytes"] is None
    assert values["infiniband_received_bytes"] == 4_000_000_000_400
    ((message, count),) = host.errors.items()
    assert message.startswith("infiniband_sent_bytes: ")
    assert count == 1


def test_a_container_with_virtual_interfaces_only_counts_those(root: Path) -> None:
    write(root / "proc/net/dev", "\n\n    lo: 9 0 0 0 0 0 0 0 9\n  veth0: 50 0 0 0 0 0 0 0 60\n")
    values = Host(root).read()
    assert (values["network_received_bytes"], values["network_sent_bytes"]) == (50, 60)


def test_loopback_alone_is_no_network(root: Path) -> None:
    write(root / "proc/net/dev", "\n\n    lo: 9 0 0 0 0 0 0 0 9\n")
    host = Host(root)
    assert "but loopback" in host.missing["network_sent_bytes"]
    assert host.read()["network_sent_bytes"] is None


def test_an_unexpected_file_is_refused_by_name(root: Path) -> None:
    write(root / "proc/meminfo", "MemTotal: 1000 kB\n")
    with pytest.raises(TelemetryError, match=r"proc/meminfo lacks MemTotal or MemAvailable"):
        Host(root).read()
