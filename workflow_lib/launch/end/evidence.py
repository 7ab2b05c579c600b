"""All that a run's end is judged from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from workflow_lib import records
from workflow_lib.launch import gpu_faults, gpu_limits
from workflow_lib.launch.end import rank_ends
from workflow_lib.launch.end.rank_ends import RankEnds
from workflow_lib.launch.gpu_faults import GpuFault
from workflow_lib.records import (
    EndedRecord,
    JobRecord,
    JobState,
    RunPaths,
    StopRecord,
    SuspensionRecord,
)

_Record = TypeVar("_Record", EndedRecord, StopRecord, SuspensionRecord)


@dataclass(frozen=True)
class Evidence:
    """What a run left, and what the scheduler says of its job."""

    paths: RunPaths
    #: the job's end record, where it left one that can be read
    ended: EndedRecord | None
    #: the job's state as the scheduler has it; null where it says nothing
    state: JobState | None
    job_id: str | None
    #: why the job was stopped early, where it was
    stopped: StopRecord | None
    #: for how long it was suspended, where it was
    suspended: SuspensionRecord | None
    ranks: RankEnds
    #: the likeliest cause first
    faults: tuple[GpuFault, ...]
    #: why limits of GPUs were not in force throughout, and which are left; see launch.gpu_limits
    limits_not_kept: str
    limits_left: str
    #: records that could not be read, and why
    damaged: tuple[str, ...]

    @property
    def trained(self) -> bool:
        """Whether the job did all that it had to do."""
        ended = self.ended
        return ended is not None and ended.failed_stage is None and ended.training_exit_code == 0

    def fault_of(self, node: str) -> GpuFault | None:
        """The likeliest of a node's faults, where its GPUs had any."""
        return next((fault for fault in self.faults if fault.node == node), None)


def gather(paths: RunPaths, state: JobState | None) -> Evidence:
    """Read what the run left.

    Raises records.RecordError where its ``job.json`` cannot be read.
    """
    unread: list[str] = []
    ended = _read(paths.ended, EndedRecord, unread)
    stopped = _read(paths.stopped, StopRecord, unread)
    suspended = _read(paths.suspended, SuspensionRecord, unread)
    job = records.read_if_there(paths.job, JobRecord)
    ranks = rank_ends.read(paths)
    faults, unread_events = gpu_faults.find(paths)
    not_kept = left = ""
    try:
        not_kept = gpu_limits.not_kept(paths, ended.nodes if ended else ())
        left = gpu_limits.left(paths)
    except records.RecordError as error:
        not_kept = f"what became of the GPUs' limits cannot be read: {error}"
    return Evidence(
        paths=paths,
        ended=ended,
        state=state,
        job_id=ended.job_id if ended else (job.job_id if job else None),
        stopped=stopped,
        suspended=suspended,
        ranks=ranks,
        faults=tuple(faults),
        limits_not_kept=not_kept,
        limits_left=left,
        damaged=(*unread, *ranks.damaged, *unread_events),
    )


def _read(path: Path, kind: type[_Record], unread: list[str]) -> _Record | None:
    """A record of the job's own, where it is there and can be read."""
    try:
        return records.read_if_there(path, kind)
    except records.RecordError as error:
        unread.append(str(error))
        return None
