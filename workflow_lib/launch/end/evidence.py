"""Collects everything from which a run's outcome is judged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
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
    RankRecord,
    RunPaths,
    StopRecord,
    SuspensionRecord,
    TelemetryStart,
)

#: a file system with less free space than this, in bytes, is called full
_FULL_BELOW = 65536

_Record = TypeVar("_Record", EndedRecord, StopRecord, SuspensionRecord)


@dataclass(frozen=True)
class Evidence:
    """The files that a run left, and what the scheduler says of its job."""

    paths: RunPaths
    #: the job's end record; null if there is none that can be read
    ended: EndedRecord | None
    #: the job's state from the scheduler; null if the scheduler does not know it
    state: JobState | None
    job_id: str | None
    #: why the job was stopped early; null if it was not
    stopped: StopRecord | None
    #: for how long the job was suspended; null if it was not
    suspended: SuspensionRecord | None
    ranks: RankEnds
    #: the likeliest cause first
    faults: tuple[GpuFault, ...]
    #: why limits of GPUs were not in force throughout training; see gpu_limits.not_kept
    limits_not_kept: str
    #: which GPUs may still have the run's limits; see gpu_limits.left
    limits_left: str
    #: the directory, of the run's files or of its logs, whose file system is full; null if there is
    #: none. A quota that is used up is not seen
    full: Path | None
    #: the checksums of the code that the job's parts recorded; null for a part that recorded none
    code: frozenset[str | None]
    #: records that could not be read, and why
    damaged: tuple[str, ...]

    @property
    def trained(self) -> bool:
        """Whether training and all other stages of the job succeeded."""
        ended = self.ended
        return ended is not None and ended.failed_stage is None and ended.training_exit_code == 0

    def fault_of(self, node: str) -> GpuFault | None:
        """The likeliest fault of a node's GPUs; None if they had none."""
        return next((fault for fault in self.faults if fault.node == node), None)


def gather(paths: RunPaths, state: JobState | None) -> Evidence:
    """Read the files that the run left.

    Raises records.RecordError if its ``job.json`` cannot be read.
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
        full=_full(paths),
        code=frozenset(_code(paths, ended)),
        damaged=(*unread, *ranks.damaged, *unread_events),
    )


def _code(paths: RunPaths, ended: EndedRecord | None) -> Iterator[str | None]:
    """The checksum of the code that each part of the job recorded."""
    if ended is not None:
        yield ended.code_sha256
    # Damaged records are named by those who need them.
    with suppress(records.RecordError, FileNotFoundError):
        began = records.read_json(paths.environment)
        code = began.get("code_sha256") if isinstance(began, dict) else None
        yield code if isinstance(code, str) else None
    for path in paths.steps.glob("rank*.json"):
        with suppress(records.RecordError):
            yield records.read_record(path, RankRecord).code_sha256
    for node in paths.sampled_nodes():
        with suppress(records.RecordError):
            yield records.read_record(paths.telemetry_start(node), TelemetryStart).code_sha256


def _full(paths: RunPaths) -> Path | None:
    for directory in (paths.directory, paths.logs):
        if directory.is_dir() and shutil.disk_usage(directory).free < _FULL_BELOW:
            return directory
    return None


def _read(path: Path, kind: type[_Record], unread: list[str]) -> _Record | None:
    """A record that the job wrote; None if it is missing or, as noted in ``unread``, damaged."""
    try:
        return records.read_if_there(path, kind)
    except records.RecordError as error:
        unread.append(str(error))
        return None
