"""What a job set on the GPUs of a node, what was in force before and after, and what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: what the cause of a run says, result or not, that left GPUs with its limits
LIMITS_LEFT = "LIMITS WERE NOT GIVEN BACK"


@dataclass(frozen=True)
class GpuLimits:
    """The limits of one GPU."""

    #: its number within the node, as telemetry counts
    gpu: int
    name: str
    uuid: str
    #: what the cell asks for; null where it leaves that alone
    power_limit_asked_w: int | None
    clock_limit_asked_mhz: int | None
    #: the limit that had been set before the job changed anything
    power_limit_before_w: float
    #: the limit that the driver enforced once the job had set its own; null where it never had
    power_limit_during_w: float | None = None
    #: the limit that was set after the job had restored it; null where nobody could read it
    power_limit_after_w: float | None = None
    #: whether the driver took back all that the job had changed
    is_restored: bool = False

    def __str__(self) -> str:
        return f"GPU {self.gpu} ({self.name}, {self.uuid})"


@dataclass(frozen=True)
class NodeLimits:
    """``gpu-limits/<node>.json``: written before the first change, and after each."""

    node: str
    gpus: tuple[GpuLimits, ...]
    #: what is not known of any GPU → why
    missing: Mapping[str, str]
    #: just before the first change
    begun_unix_s: float
    #: which start of the node's kernel, and which job, this was; null where that is not known
    boot_id: str | None
    job_id: str | None
    #: when all limits were in force; null where they never were
    set_unix_s: float | None = None
    #: when all GPUs had back what they had before; null while they do not
    restored_unix_s: float | None = None
    #: whether that was before the job asked for it, at its end
    restored_early: bool = False
    #: what could not be set or restored
    problems: tuple[str, ...] = ()
