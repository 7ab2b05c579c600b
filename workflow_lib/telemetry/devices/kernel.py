"""What Linux tells in files of ``/proc`` and ``/sys``: how busy CPUs are, how much energy they
take, and how many other jobs the node runs.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from workflow_lib.telemetry.source import TelemetryError, UnreadableError

#: one read of a file made of records, such as /proc/net/dev, returns about a page of them
_CHUNK_BYTES = 1 << 16


#: bytes in one unit of port_xmit_data and port_rcv_data (InfiniBand Architecture 1, section 16.1.3)
_INFINIBAND_UNIT_BYTES = 4


class KernelFile:
    """A file that stays open, because opening it takes several times as long as reading it.

    At every read from the beginning, the kernel writes the file's text anew.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be opened."""
        self.path = path
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """The whole text. Raises OSError if the kernel refuses."""
        chunks: list[bytes] = []
        offset = 0
        while chunk := self._read(offset):
            chunks.append(chunk)
            offset += len(chunk)
        return b"".join(chunks)

    def read_start(self) -> bytes:
        """The text that one read returns, which is all of a file of sysfs. Raises OSError."""
        return self._read(0)

    def number(self) -> int:
        """The whole number that the file holds. Raises OSError; ValueError if it holds none."""
        return int(self._read(0))

    def close(self) -> None:
        """Close it; a later read opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self, offset: int) -> bytes:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(self._descriptor, _CHUNK_BYTES, offset)
        except OSError:
            # After a driver was reloaded, the path leads to a new file: open that the next time.
            self.close()
            raise


class Sensor:
    """A quantity of the node that files tell."""

    #: those that it reads
    files: list[KernelFile]

    def read(self) -> float:
        """The value, in the unit of its column. Raises OSError, ValueError or UnreadableError if it
        cannot be read.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()


class InfinibandBytes(Sensor):
    """Bytes over all InfiniBand ports, by one of their counters."""

    def __init__(self, root: Path, counter: str) -> None:
        """Raises UnreadableError if there is no port, or one without the counter."""
        ports = sorted(root.glob("sys/class/infiniband/*/ports/*/counters"))
        if not ports:
            raise UnreadableError("no InfiniBand port under /sys/class/infiniband")
        try:
            self.files = [KernelFile(port / counter) for port in ports]
        except OSError as error:
            raise UnreadableError(str(error)) from None

    def read(self) -> int:
        """The sum, in bytes."""
        return sum(file.number() for file in self.files) * _INFINIBAND_UNIT_BYTES


class CpuUtilisation:
    """The busy share of all CPUs between two calls."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._file = KernelFile(root / "proc/stat")
        self._before: tuple[int, int] | None = None

    def share(self) -> float | None:
        """The busy share since the last call, 0 to 1; None at the first call, and if no clock tick
        has passed since the last one.
        """
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
        fields = self._file.read_start().partition(b"\n")[0].split()
        # cpu user nice system idle iowait irq softirq steal [guest guest_nice, both within user]
        ticks = [int(field) for field in fields[1:9]]
        if fields[:1] != [b"cpu"] or len(ticks) < 4:
            raise TelemetryError(f"{self._file.path} does not begin with the line of all CPUs")
        idle = ticks[3] + (ticks[4] if len(ticks) > 4 else 0)
        return sum(ticks) - idle, sum(ticks)


#: No package draws so much. A counter that would have advanced faster by going round its range, or
#: by over half of it, has stepped back instead.
_MOST_W = 10_000.0
#: zones of packages; not zones within a package (intel-rapl:0:0 is its cores or memory), and not
#: intel-rapl-mmio:0, which is the same package again
_ZONE = re.compile(r"intel-rapl:\d+")


class CpuEnergy(Sensor):
    """The energy of all CPU packages since this object was made."""

    def __init__(self, root: Path) -> None:
        """Raises UnreadableError with the reason if no counters can be read."""
        try:
            zones = [
                zone
                for zone in sorted(root.glob("sys/class/powercap/intel-rapl:*"))
                if _ZONE.fullmatch(zone.name) and _text(zone / "name").startswith("package")
            ]
            self.files = [KernelFile(zone / "energy_uj") for zone in zones]
            self._ranges_uj = [int(_text(zone / "max_energy_range_uj")) for zone in zones]
            self._before_uj = [counter.number() for counter in self.files]
            self._before_s = time.monotonic()
        except PermissionError as error:
            raise UnreadableError(
                f"{error.filename} (RAPL) is readable by root alone, unless the site opens it"
            ) from None
        except (OSError, ValueError) as error:
            raise UnreadableError(f"RAPL: {error}") from None
        if not zones:
            raise UnreadableError("no CPU package under /sys/class/powercap (RAPL)")
        self._sum_uj = 0

    def read(self) -> float:
        """Energy so far, in J. It falls if a counter stepped back.

        Call it before a counter can go round half its range (7 minutes at 300 W). Raises OSError or
        ValueError if a counter cannot be read.
        """
        now_uj, now_s = [counter.number() for counter in self.files], time.monotonic()
        most_uj = 1e6 * _MOST_W * max(now_s - self._before_s, 1.0)
        for now, before, range_uj in zip(now_uj, self._before_uj, self._ranges_uj):
            rise_uj = now - before
            if rise_uj < 0 and rise_uj + range_uj <= min(most_uj, range_uj / 2):
                rise_uj += range_uj
            self._sum_uj += rise_uj
        self._before_uj, self._before_s = now_uj, now_s
        return self._sum_uj / 1e6


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace").strip()


#: under /sys/fs/cgroup, with cgroup v2 and v1: this job's group; the directory above all jobs'
#: groups, relative to it; and the pattern of all jobs' groups there
_GROUPS = (
    ("system.slice/*slurmstepd.scope/job_{job}", "..", "job_*"),
    ("*/slurm*/uid_*/job_{job}", "../..", "uid_*/job_*"),
)


class OtherJobs(Sensor):
    """How many jobs the node runs besides this one."""

    def __init__(self, root: Path, job_id: str | None) -> None:
        """Raises UnreadableError if the control groups of jobs are not visible."""
        if not job_id:
            raise UnreadableError("not a job of Slurm's, so that nothing tells of other jobs")
        self.files = []
        groups = root / "sys/fs/cgroup"
        for own, up, every in _GROUPS:
            for group in sorted(groups.glob(own.format(job=job_id))):
                self._above, self._every, self._own = (group / up).resolve(), every, group.name
                return
        raise UnreadableError(
            "no control group of this job under /sys/fs/cgroup: Slurm does not use them, or a "
            "container hides them"
        )

    def read(self) -> int:
        """How many other jobs have a control group now. Raises UnreadableError if this job's is
        gone.
        """
        names = {group.name for group in self._above.glob(self._every)}
        if self._own not in names:
            raise UnreadableError("the control group of this job is gone")
        return len(names) - 1
