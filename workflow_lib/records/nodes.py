"""Records of a node: what its sampler found and did, how its clock ran, bytes over its GPUs' links,
and limits of its GPUs.

A node's clock is compared with the first node's before and after training. The first rank of each
other node asks rank 0 for its time, many times, and keeps the quickest answer. Rank 0 read its
clock at some time between question and answer, so half of the time between them bounds the error,
however long the messages took in each direction::

    this node   ──t0────────────t3──      ahead = (t0 + t3) / 2 − T,   error = (t3 − t0) / 2
    rank 0      ────────T───────────

Between the two comparisons the difference is taken as a straight line: quartz clocks drift
steadily, by up to about 100 ppm, and time daemons slew a clock by 500 ppm at most. If the
difference changed faster, the clock was set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workflow_lib.records.contract import RankRecord


def pci_address(bus_id: str | None) -> str | None:
    """A PCI bus id without the function, and with a domain of four digits: "0000:c1:00" of NVML's
    "00000000:C1:00.0" and AMD SMI's "0000:c1:00.0". None if there is none, or it has another form.
    """
    match = re.fullmatch(
        r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(\.[0-9a-fA-F])?", bus_id or ""
    )
    if match is None:
        return None
    return f"{int(match[1], 16):04x}:{int(match[2], 16):02x}:{int(match[3], 16):02x}"


@dataclass(frozen=True)
class TelemetryStart:
    """``telemetry/<node>.json``: what the sampler found on its node, written before its first
    sample."""

    node: str
    #: "nvidia", "amd" or "simulated": never "auto"
    source: str
    simulated: bool
    started_unix_s: float
    sample_rate_hz: float
    #: one entry a GPU: name, uuid, serial, power_limit_w, driver_version, as far as known
    gpus: tuple[Mapping[str, Any], ...]
    #: column name → why it stays empty on this node
    missing: Mapping[str, str]
    #: GPUs of the node that the driver lists and the job does not have: index, name, uuid,
    #: power_limit_w, and power_w, which is one reading before training; a value that the job may
    #: not read is null
    other_gpus: tuple[Mapping[str, Any], ...] = ()
    #: the kernel's boot id of the node, and the job's id; null if not known, and in records of
    #: earlier versions
    boot_id: str | None = None
    job_id: str | None = None
    #: the checksum of the zip that it imported its code from; null in records of earlier versions
    code_sha256: str | None = None

    def number_of(self, rank: RankRecord) -> int | None:
        """The sampler's index of the GPU that a rank trained on, None if it is none of them.

        The GPU is found by its UUID if the rank and all GPUs of the sampler have one, else by its
        PCI address. Partitions of one GPU share an address: they are taken in the driver's order,
        if the address is right. Where there is neither, the index is the rank's own.
        """
        known = [str(entry.get("uuid") or "").lower() for entry in self.gpus]
        if rank.gpu_uuid is not None and all(known):
            uuid = rank.gpu_uuid.lower()
            return known.index(uuid) if uuid in known else None
        addresses = [pci_address(entry.get("pci_bus_id")) for entry in self.gpus]
        if rank.gpu is None or rank.pci_address is None or None in addresses:
            return rank.gpu
        if addresses[rank.gpu : rank.gpu + 1] == [rank.pci_address]:
            return rank.gpu
        fitting = [gpu for gpu, address in enumerate(addresses) if address == rank.pci_address]
        return fitting[0] if len(fitting) == 1 else None

    def power_sensor(self, gpu: int, gpus_per_package: int) -> int:
        """The index of the GPU that reports the power of this GPU's package, as the source found
        it. If the source does not tell, it is the first GPU of the package.

        On MI250 the reading of the package's other die is 0 or absent, and has no meaning.
        """
        if gpu < len(self.gpus) and "package" in self.gpus[gpu]:
            package = self.gpus[gpu]["package"]
            for other, entry in enumerate(self.gpus):
                if entry.get("package") == package and entry.get("reports_power"):
                    return other
        return gpu - gpu % gpus_per_package


@dataclass(frozen=True)
class CoolDown:
    """``cool-down.json``: how long the job waited for cool GPUs, and how cool they got."""

    started_unix_s: float
    waited_s: float
    #: whether every GPU got as cool as the cell asks
    reached: bool
    #: the hottest of all nodes' GPUs, before and after the wait
    hottest_before_c: float
    hottest_after_c: float


@dataclass(frozen=True)
class TelemetryEnd:
    """``telemetry/<node>-end.json``: counts of the sampler, written if it ends without an error."""

    node: str
    ended_unix_s: float
    #: ticks that were sampled; every GPU is read at each
    samples: int
    #: ticks that began later than half a period after their deadline
    late_samples: int
    #: ticks that were left out because the next one was due
    missed_samples: int
    #: "column: message" → how often a reading failed
    errors: Mapping[str, int]
    cpu_time_s: float
    peak_memory_bytes: int
    #: each GPU's enforced power limit at the end, in W; null where it is not known. Null in records
    #: of earlier versions, and in runs whose job sets limits, which it takes back meanwhile.
    power_limits_w: tuple[float | None, ...] | None = None


#: the fastest that clocks drift or are slewed, in s per s (adjtimex(2))
_FASTEST_DRIFT = 500e-6


@dataclass(frozen=True)
class ClockReading:
    """One comparison with the clock of rank 0's node."""

    #: when it was made, by this node's clock
    unix_time_s: float
    #: this node's time minus rank 0's
    ahead_s: float
    #: bound of the error of ``ahead_s``
    error_s: float


@dataclass(frozen=True)
class NodeClock:
    """``steps/clock-<node>.json``: the clock of one node, in runs of several nodes."""

    node: str
    #: before the first step and after the last; null if there is a ``reason``
    before: ClockReading | None
    after: ClockReading | None
    #: why clocks were not compared; "" if they were
    reason: str = ""

    @property
    def drift(self) -> float:
        """Seconds that the clock gains per second; 0 if it was compared less than twice."""
        if self.before is None or self.after is None:
            return 0.0
        elapsed_s = self.after.unix_time_s - self.before.unix_time_s
        gained_s = self.after.ahead_s - self.before.ahead_s
        return gained_s / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def skew_s(self) -> float:
        """The largest difference from rank 0's clock in a comparison, in s, without its sign."""
        return max((abs(end.ahead_s) for end in (self.before, self.after) if end), default=0.0)

    @property
    def error_s(self) -> float:
        """The largest error of the node's times after they are corrected, in s.

        If the clock was set between the comparisons, at an unknown time, the error includes the
        whole change.
        """
        if self.before is None or self.after is None:
            return 0.0
        error_s = max(self.before.error_s, self.after.error_s)
        elapsed_s = self.after.unix_time_s - self.before.unix_time_s
        gained_s = abs(self.after.ahead_s - self.before.ahead_s)
        allowed_s = _FASTEST_DRIFT * elapsed_s + self.before.error_s + self.after.error_s
        return error_s if elapsed_s > 0 and gained_s <= allowed_s else error_s + gained_s

    def ahead_at(self, unix_time_s: float) -> float:
        """How far the clock was ahead, in s, when it showed ``unix_time_s``."""
        if self.before is None:
            return 0.0
        return self.before.ahead_s + self.drift * (unix_time_s - self.before.unix_time_s)


#: words in the cause of a run that left GPUs with its limits, whether or not it is a result
LIMITS_LEFT = "LIMITS WERE NOT GIVEN BACK"


@dataclass(frozen=True)
class GpuLimits:
    """The limits of one GPU."""

    #: its index in the node, as telemetry counts
    gpu: int
    name: str
    uuid: str
    #: what the cell asks for; null if the cell does not set it
    power_limit_asked_w: int | None
    clock_limit_asked_mhz: int | None
    #: the limit that had been set before the job changed anything
    power_limit_before_w: float
    #: the limit that the driver enforced once the job had set its own; null if it never did
    power_limit_during_w: float | None = None
    #: the limit that was set after the job had restored it; null if it could not be read
    power_limit_after_w: float | None = None
    #: whether all that the job had changed was restored
    is_restored: bool = False

    def __str__(self) -> str:
        return f"GPU {self.gpu} ({self.name}, {self.uuid})"


@dataclass(frozen=True)
class NodeLimits:
    """``gpu-limits/<node>.json``: written before the first change, and after each."""

    node: str
    gpus: tuple[GpuLimits, ...]
    #: name of a value → why it is not known for any GPU
    missing: Mapping[str, str]
    #: just before the first change
    begun_unix_s: float
    #: the kernel's boot id of the node, and the job's id; null if not known
    boot_id: str | None
    job_id: str | None
    #: when all limits were in force; null if they never were
    set_unix_s: float | None = None
    #: when all GPUs had their former limits back; null until then
    restored_unix_s: float | None = None
    #: whether that was before the job's end
    restored_early: bool = False
    #: what could not be set or restored
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class LinkReading:
    """A GPU's cumulative counters over all of its links, read between two steps."""

    unix_time_s: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class LinkCount:
    """``steps/links-rank<n>.json``: bytes that a rank's GPU sent and received in whole steps."""

    rank: int
    #: the first step that was counted, and the number of counted steps
    first_step: int
    steps: int
    #: before the first of them and after the last; null if there is a ``reason``
    before: LinkReading | None
    after: LinkReading | None
    #: why nothing was counted; "" if it was
    reason: str = ""
