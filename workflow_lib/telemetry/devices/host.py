"""Reads the node's CPUs, memory, network and board, from ``/proc``, ``/sys`` and IPMI.

RDMA traffic does not pass the IP interfaces, so InfiniBand is read from its own port counters,
which count units of four bytes (lanes).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from workflow_lib.telemetry.devices.hwmon import BoardSensors, CpuTemperature
from workflow_lib.telemetry.devices.ipmi import Background, Ipmi
from workflow_lib.telemetry.devices.kernel import (
    CpuEnergy,
    CpuUtilisation,
    InfinibandBytes,
    KernelFile,
    OtherJobs,
    Sensor,
)
from workflow_lib.telemetry.source import TelemetryError, UnreadableError, Value

#: /sys/class/net/<interface>/type of IP over InfiniBand (linux/if_arp.h)
_ARPHRD_INFINIBAND = "32"
#: ACPI's power meter averages over a second or more, and may have to ask the board controller
_HWMON_PERIOD_S = 2.0
#: a call of ipmitool takes seconds
_IPMI_PERIOD_S = 10.0


class Host:
    """Readings of the node itself. ``root`` is the directory of its ``proc``, ``sys`` and ``dev``.

    Interfaces, ports and sensors are looked up only once.
    """

    def __init__(self, root: Path = Path("/"), job_id: str | None = None) -> None:
        """``job_id`` is the id of this process's Slurm job; None outside of Slurm.

        Raises OSError or TelemetryError if /proc is not that of Linux.
        """
        self.errors: Counter[str] = Counter()
        #: column → why it stays empty
        self.missing: dict[str, str] = {}
        self._cpu = CpuUtilisation(root)
        self._memory = KernelFile(root / "proc/meminfo")
        self._network = KernelFile(root / "proc/net/dev")
        self._interfaces = _interfaces(root, self._network.read())
        if not self._interfaces:
            reason = "no Ethernet interface but loopback in /proc/net/dev"
            self.missing |= {"network_received_bytes": reason, "network_sent_bytes": reason}
        self._closing: list[Callable[[], None]] = []
        self._sensors: dict[str, Sensor] = {}
        sensors: dict[str, Callable[[], Sensor]] = {
            "infiniband_received_bytes": lambda: InfinibandBytes(root, "port_rcv_data"),
            "infiniband_sent_bytes": lambda: InfinibandBytes(root, "port_xmit_data"),
            "cpu_temperature_c": lambda: CpuTemperature(root),
            "cpu_energy_j": lambda: CpuEnergy(root),
            "other_jobs": lambda: OtherJobs(root, job_id),
        }
        for column, open_sensor in sensors.items():
            try:
                self._sensors[column] = open_sensor()
            except UnreadableError as error:
                self.missing[column] = str(error)
            else:
                self._closing.append(self._sensors[column].close)
        self._slow: list[Background] = []
        self._open_board_sensors(root)

    def read(self) -> dict[str, Value]:
        """Column → value, in the units of HOST_SAMPLES. The first call has no CPU utilisation.

        Slow readings are taken in the background, and each is returned once.
        """
        share = self._cpu.share()
        received, sent = self._network_bytes() if self._interfaces else (None, None)
        values: dict[str, Value] = {
            "cpu_utilisation_percent": None if share is None else 100.0 * share,
            "memory_used_bytes": self._memory_used_bytes(),
            "network_received_bytes": received,
            "network_sent_bytes": sent,
        }
        for column, sensor in self._sensors.items():
            try:
                values[column] = sensor.read()
            # A failed read must not look like a port without traffic.
            except (OSError, ValueError, UnreadableError) as error:
                self.errors[f"{column}: {error}"] += 1
        for slow in self._slow:
            for column, value in slow.latest(time.monotonic()).items():
                if isinstance(value, UnreadableError):
                    self.errors[f"{column}: {value}"] += 1
                else:
                    values[column] = value
        return values

    def close(self) -> None:
        """Close the sensors, and end the background threads and the commands that they started."""
        for close in self._closing:
            close()

    def _open_board_sensors(self, root: Path) -> None:
        """Use the sensors of hwmon, and IPMI for those that hwmon lacks."""
        board = BoardSensors(root)
        if board.columns:
            self._slow.append(Background(board.read, _HWMON_PERIOD_S))
            self._closing += [self._slow[-1].close, board.close]
        if not board.missing:
            return
        try:
            ipmi = Ipmi(root, list(board.missing))
        except UnreadableError as error:
            for column, reason in board.missing.items():
                self.missing[column] = f"{reason}, and no IPMI: {error}"
            return
        self._slow.append(Background(ipmi.read, _IPMI_PERIOD_S))
        self._closing += [ipmi.close, self._slow[-1].close]

    def _memory_used_bytes(self) -> int:
        text = self._memory.read_start()
        total = re.search(rb"^MemTotal:\s*(\d+) kB", text, re.MULTILINE)
        available = re.search(rb"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
        if total is None or available is None:
            raise TelemetryError(f"{self._memory.path} lacks MemTotal or MemAvailable")
        return (int(total[1]) - int(available[1])) * 1024

    def _network_bytes(self) -> tuple[int | None, int | None]:
        """Bytes received and sent over all interfaces; None for both if an interface is gone."""
        counted = {
            name: (received, sent)
            for name, received, sent in _network_lines(self._network.read())
            if name in self._interfaces
        }
        if gone := self._interfaces - counted.keys():
            self.errors[f"network_received_bytes: {', '.join(sorted(gone))} is gone"] += 1
            return None, None
        return sum(both[0] for both in counted.values()), sum(both[1] for both in counted.values())


def _network_lines(text: bytes) -> list[tuple[str, int, int]]:
    """Interface, bytes received and bytes sent, from /proc/net/dev."""
    lines: list[tuple[str, int, int]] = []
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(b":")
        fields = rest.split()
        lines.append((name.strip().decode("ascii", "replace"), int(fields[0]), int(fields[8])))
    return lines


def _interfaces(root: Path, text: bytes) -> frozenset[str]:
    """The interfaces to count: all that have a device.

    Bridges, bonds and virtual pairs are left out, because a device counts their traffic as well. IP
    over InfiniBand is left out, because the port counters include it. In a container there may be
    only virtual interfaces; then these are counted.
    """
    physical: set[str] = set()
    virtual: set[str] = set()
    for name, _, _ in _network_lines(text):
        interface = root / "sys/class/net" / name
        if name == "lo" or _is_infiniband(interface):
            continue
        (physical if (interface / "device").exists() else virtual).add(name)
    return frozenset(physical or virtual)


def _is_infiniband(interface: Path) -> bool:
    try:
        return (interface / "type").read_text(encoding="ascii").strip() == _ARPHRD_INFINIBAND
    except FileNotFoundError:
        return False  # /sys may be hidden in a container
