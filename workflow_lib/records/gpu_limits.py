"""Records of the limits that a job set on GPUs, and of the limits before and after the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
