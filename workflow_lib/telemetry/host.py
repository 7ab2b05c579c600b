"""The node beside its GPUs: CPU, memory and network, from ``/proc`` and ``/sys``.

RDMA traffic does not pass the IP interfaces, so InfiniBand is read from its own port counters,
which count in units of four bytes (lanes).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from workflow_lib.telemetry.source import TelemetryError, Value

#: bytes in one unit of port_xmit_data and port_rcv_data (InfiniBand Architecture 1, section 16.1.3)
_INFINIBAND_UNIT_BYTES = 4
#: /sys/class/net/<interface>/type of IP over InfiniBand (linux/if_arp.h)
_ARPHRD_INFINIBAND = "32"


class CpuUtilisation:
    """Busy share of all CPUs, each time since the time before."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._path = root / "proc/stat"
        self._before: tuple[int, int] | None = None

    def share(self) -> float | None:
        """Busy share, 0 to 1; None at the first call, or where no clock tick passed since."""
        busy, total = self._ticks()
        if self._before is None:
            self._before = (busy, total)
            return None
        busy_before, total_before = self._before
        if total <= total_before:
            return None
        self._before = (busy, total)
        return min(max((busy - busy_before) / (total - total_before), 0.0), 1.0)

    def _ticks(self) -> tuple[int, int]:
        with self._path.open(encoding="ascii") as stream:
            fields = stream.readline().split()
        # cpu user nice system idle iowait irq softirq steal [guest guest_nice, both within user]
        ticks = [int(field) for field in fields[1:9]]
        if fields[:1] != ["cpu"] or len(ticks) < 4:
            raise TelemetryError(f"{self._path} does not begin with the line of all CPUs")
        idle = ticks[3] + (ticks[4] if len(ticks) > 4 else 0)
        return sum(ticks) - idle, sum(ticks)


class Host:
    """Readings of the node itself; ``root`` is where its ``proc`` and ``sys`` are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._cpu = CpuUtilisation(root)
        self.errors: Counter[str] = Counter()
        #: column → why it stays empty
        self.missing: dict[str, str] = {}
        self._infiniband = sorted(root.glob("sys/class/infiniband/*/ports/*/counters"))
        if not self._infiniband:
            reason = "no InfiniBand port under /sys/class/infiniband"
            self.missing |= {"infiniband_received_bytes": reason, "infiniband_sent_bytes": reason}
        if self._network() is None:
            reason = "no Ethernet interface but loopback in /proc/net/dev"
            self.missing |= {"network_received_bytes": reason, "network_sent_bytes": reason}

    def read(self) -> dict[str, Value]:
        """Column → value, in the units of HOST_SAMPLES. The first call has no CPU utilisation."""
        share = self._cpu.share()
        received, sent = self._network() or (None, None)
        return {
            "cpu_utilisation_percent": None if share is None else 100.0 * share,
            "memory_used_bytes": self._memory_used_bytes(),
            "network_received_bytes": received,
            "network_sent_bytes": sent,
            "infiniband_received_bytes": self._infiniband_bytes("received", "port_rcv_data"),
            "infiniband_sent_bytes": self._infiniband_bytes("sent", "port_xmit_data"),
        }

    def _memory_used_bytes(self) -> int:
        path = self._root / "proc/meminfo"
        kib: dict[str, int] = {}
        for line in path.read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                kib[name] = int(rest.split()[0])
        if len(kib) < 2:
            raise TelemetryError(f"{path} lacks MemTotal or MemAvailable")
        return (kib["MemTotal"] - kib["MemAvailable"]) * 1024

    def _network(self) -> tuple[int, int] | None:
        """Bytes received and sent over every interface that is backed by a device.

        Bridges, bonds and virtual pairs carry traffic that a device counts as well, so they are
        left out; IP over InfiniBand is as well, because the port counters contain it. In a
        container there may be virtual interfaces only: then those are what is there to count.
        """
        physical: list[tuple[int, int]] = []
        virtual: list[tuple[int, int]] = []
        path = self._root / "proc/net/dev"
        for line in path.read_text(encoding="ascii").splitlines()[2:]:
            name, _, rest = line.partition(":")
            name = name.strip()
            interface = self._root / "sys/class/net" / name
            if name == "lo" or _is_infiniband(interface):
                continue
            fields = rest.split()
            counted = (int(fields[0]), int(fields[8]))
            (physical if (interface / "device").exists() else virtual).append(counted)
        chosen = physical or virtual
        if not chosen:
            return None
        return sum(received for received, _ in chosen), sum(sent for _, sent in chosen)

    def _infiniband_bytes(self, direction: str, counter: str) -> int | None:
        column = f"infiniband_{direction}_bytes"
        if column in self.missing:
            return None
        try:
            units = sum(int((p / counter).read_text(encoding="ascii")) for p in self._infiniband)
        except (OSError, ValueError) as error:
            # A port that went down must not look like one that carried nothing.
            self.errors[f"{column}: {error}"] += 1
            return None
        return units * _INFINIBAND_UNIT_BYTES


def _is_infiniband(interface: Path) -> bool:
    try:
        return (interface / "type").read_text(encoding="ascii").strip() == _ARPHRD_INFINIBAND
    except FileNotFoundError:
        return False  # /sys may be hidden in a container
