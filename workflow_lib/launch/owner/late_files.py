"""Waits for files that a job left, and that this machine does not show yet.

An NFS client may miss for up to 60 s what another one has written (acdirmax, nfs(5)). A run that is
judged meanwhile seems to lack ranks or telemetry.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from workflow_lib import records
from workflow_lib.launch import interruption
from workflow_lib.launch.messages import say
from workflow_lib.records import EndedRecord, RunPaths

#: how long files that are known to exist may take to be seen
LONGEST_LAG_S = 75.0
_LOOK_EVERY_S = 1.0


def wait_for_files(paths: RunPaths) -> None:
    """Wait until each file of the job's end record is here with all its bytes, or 75 s are over.

    Raises interruption.InterruptedRunError.
    """
    try:
        ended = records.read_if_there(paths.ended, EndedRecord)
    except records.RecordError:
        return  # the run's outcome names it
    left = {} if ended is None else ended.left_bytes or {}
    until = time.monotonic() + LONGEST_LAG_S
    is_told = False
    while (late := _late(paths, left)) and time.monotonic() < until:
        if not is_told:
            say(
                f"files that the job wrote are not here yet: {late[0]}, and {len(late) - 1} more; "
                f"waiting up to {LONGEST_LAG_S:.0f} s for the file system to show them"
            )
            is_told = True
        interruption.pause(_LOOK_EVERY_S)


def _late(paths: RunPaths, left: Mapping[str, int]) -> list[str]:
    # Opening a directory makes an NFS client ask the server for its names.
    for directory in (paths.directory, *paths.of_job()):
        with contextlib.suppress(OSError):
            os.scandir(directory).close()
    return [name for name, size in left.items() if _size(paths.directory / name) < size]


def _size(path: Path) -> int:
    """A file's bytes; −1 if it is not there. Opening it makes an NFS client ask for its size."""
    try:
        with path.open("rb") as stream:
            return os.fstat(stream.fileno()).st_size
    except OSError:
        return -1
