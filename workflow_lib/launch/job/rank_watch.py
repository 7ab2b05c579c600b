"""Watches a rank's process: passes signals on to it, and records how it ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from workflow_lib.launch.job.rank_signals import ENDING, HANDED_ON
from workflow_lib.launch.processes import signal_name
from workflow_lib.records.outcomes import ExitRecord
from workflow_lib.records.paths import RunPaths, node_name, rank_number
from workflow_lib.records.whole_files import write_json


def out_of_memory_kills(
    membership: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """How many processes of this control group the kernel has killed because memory ran out.

    The count is the line ``oom_kill <count>`` of ``memory.events`` (cgroup v2) or
    ``memory.oom_control`` (cgroup v1), as admin-guide/cgroup-v2 and cgroup-v1/memory of Linux's
    documentation say. If the group has no such file, the nearest group above it that has one is
    read.

    Returns None if no such file can be read, as in a container that does not show them.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for file in (path for line in lines for path in _files(line, mounted)):
        try:
            counted = dict(row.split() for row in file.read_text(encoding="ascii").splitlines())
            return int(counted["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue  # missing, or of a kernel without this count: try the next file
    return None


def _files(line: str, mounted: Path) -> Iterator[Path]:
    """The files that may hold the count for a line of /proc/<process>/cgroup, own group first."""
    _, controllers, group = line.split(":", 2)
    if not controllers:
        root, name = mounted, "memory.events"
    elif "memory" in controllers.split(","):
        root, name = mounted / "memory", "memory.oom_control"
    else:
        return
    own = root / group.lstrip("/")
    for directory in (own, *own.parents):
        yield directory / name
        if directory == root:
            return


#: how often to check that the job's script still runs, for local jobs
_LOOK_EVERY_S = 1.0
#: How long to wait for the launcher's signal if the rank got it first: launchers signal their
#: processes one by one.
_PATIENCE_S = 0.2


def watch(process: int, run_directory: str) -> int:
    """Wait for the end of the child ``process``, and record it in ``run_directory`` if it failed.

    The signals of ``HANDED_ON`` and SIGCHLD must have been blocked before the child was started.

    Returns the child's exit code, or 128 + the number of the signal that ended it.
    """
    before = out_of_memory_kills()
    status, told_to_end, ended = _wait(process)
    if status is None:
        # Nothing is written: by now the run's directory may belong to another attempt.
        print(f"the job's script is gone: ended process {process}", file=sys.stderr)
        return 128 + signal.SIGKILL
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        after = out_of_memory_kills()
        record = ExitRecord(
            rank=rank_number(),
            node=node_name(),
            unix_time_s=ended,
            exit_code=code if code > 0 else None,
            signal=signal_name(-code) if code < 0 else None,
            told_to_end=told_to_end,
            out_of_memory_kills=None if before is None or after is None else after - before,
        )
        _write(RunPaths(Path(run_directory)), record)
    return code if code >= 0 else 128 - code


def _wait(process: int) -> tuple[int | None, bool, float]:
    """Pass signals on until the process has ended.

    Returns its status as waitpid gives it, whether it was asked to end before, and when it ended,
    in s since the epoch. The status is None if the job's script was gone, so that this function
    killed the process.
    """
    awaited = HANDED_ON | {signal.SIGCHLD}
    script = os.environ.get("TRIPTYCH_JOB_PROCESS")
    asked: set[int] = set()
    while True:
        if script is None:
            received = signal.sigwaitinfo(awaited)
        elif (info := signal.sigtimedwait(awaited, _LOOK_EVERY_S)) is not None:
            received = info
        elif Path("/proc", script).exists():
            continue
        else:
            # Slurm ends the steps of a job that is gone. Nothing ends a local job's ranks: they
            # would train on beside the next job.
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return None, False, time.time()
        if received.si_signo != signal.SIGCHLD:
            asked.add(received.si_signo)
            os.kill(process, received.si_signo)
            continue
        reaped, status = os.waitpid(process, os.WNOHANG)
        if reaped == process:
            break  # else it was only stopped or continued
    ended_unix_s = time.time()
    by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if by in HANDED_ON and not asked:
        late = signal.sigtimedwait(HANDED_ON, _PATIENCE_S)
        asked |= {late.si_signo} if late is not None else set()
    return status, bool(asked & ENDING) or by in asked, ended_unix_s


def _write(paths: RunPaths, record: ExitRecord) -> None:
    try:
        write_json(paths.rank_exit(record.rank), record)
    except OSError as error:
        # As on a full file system: the launcher must still learn how the rank ended.
        print(f"rank {record.rank}: {record} (not written: {error})", file=sys.stderr)
