"""``python -m workflow_lib.telemetry.limits hold CELL_JSON``: set the limits of this node's GPUs
that a cell asks for, and restore the former limits at the job's end.

Even if processes are killed, another one restores the limits::

    hold                  guard, its child in a session of its own   a journal on the node's disk
    reads the limits ──────────────────────────────────────────────▶ the limits to restore
    starts guard ───────▶ waits for the end of hold
    sets limits
      … telemetry, training …
    restores, at the job's end, on SIGTERM, or when its parent is gone        removed
    (was killed)          restores                                            removed
    (was killed)          (was killed)      the end of job.sh, or the next job here, restores

The journal is locked while hold or guard runs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType

from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import NodeLimits
from workflow_lib.records.paths import RunPaths, boot_id, job_id, node_name
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import whole_file, write_json
from workflow_lib.telemetry.devices import nvidia_limits as nvidia
from workflow_lib.telemetry.devices.nvml import started_nvml
from workflow_lib.telemetry.files import leave_mark
from workflow_lib.telemetry.source import TelemetryError

#: a directory on each node that outlives jobs; journals are in a subdirectory of each user
LOCAL = Path("/var/tmp")
_LOOK_EVERY_S = 0.5
#: how long the end of a job waits for a guard that is restoring limits, in s
_GUARD_S = 10.0


@dataclass(frozen=True)
class Journal:
    """The limits to restore, and the run whose job changed them."""

    run_directory: str
    limits: NodeLimits


def hold(paths: RunPaths, cell: Cell, node: str) -> None:
    """Set the cell's limits, keep them until the job asks to stop, and restore the former limits.

    Raises TelemetryError, after restoring, if a limit could not be set or restored. Raises OSError
    before anything is changed.
    """
    stopping = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    parent = os.getppid()
    give_back_leftovers()
    with _nvml() as nvml:
        limits = NodeLimits(
            node=node,
            gpus=nvidia.read_limits(nvml, cell.training, cell.ranks_per_node),
            missing=nvidia.MISSING,
            begun_unix_s=time.time(),
            boot_id=boot_id(),
            job_id=job_id(),
        )
        write_json(paths.node_limits(node), limits)
        with _guarded(Journal(str(paths.directory.absolute()), limits)) as path:
            problems = []
            try:
                gpus = tuple(nvidia.set_limits(nvml, gpu) for gpu in limits.gpus)
                limits = dataclasses.replace(limits, gpus=gpus, set_unix_s=time.time())
                write_json(paths.node_limits(node), limits)
                paths.limits_ready(node).touch()
                while not (stopping or paths.telemetry_stop.exists() or os.getppid() != parent):
                    time.sleep(_LOOK_EVERY_S)
            except (TelemetryError, OSError, nvml.NVMLError) as error:
                problems.append(str(error))
            problems += _give_back(nvml, path, limits, paths, tuple(problems))
    if problems:
        raise TelemetryError("; ".join(problems))


def give_back_leftovers(only: RunPaths | None = None) -> None:
    """Restore limits that killed jobs of this user left on this node's GPUs; with ``only``, those
    that the job of this run left.

    Raises TelemetryError if GPUs of this job keep such limits.
    """
    for path in sorted(_directory().glob("*.json")) if _is_own(_directory()) else ():
        with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
            try:
                journal = read_record(path, Journal)
            except RecordError as error:
                raise TelemetryError(
                    f"limits of a run that was killed may be left on this node: {error}; have an "
                    "admin restore them (nvidia-smi -pl and -rgc), and then delete that file"
                ) from None
            run = RunPaths(Path(journal.run_directory))
            if journal.limits.node != node_name():
                continue  # nodes without disks may share the directory
            if only is not None and run.directory != only.directory.absolute():
                continue
            # If the journal is not locked, no other process will restore the limits.
            if _has_lock(stream.fileno(), 0.0 if only is None else _GUARD_S) and path.exists():
                _give_back_for(path, journal, run)


def _give_back_for(path: Path, journal: Journal, run: RunPaths) -> None:
    """Restore the limits in place of a process that was killed. Raises TelemetryError if that
    fails.
    """
    limits = journal.limits
    if limits.boot_id != boot_id():
        path.unlink()  # the node was rebooted, which resets limits
        return
    with _nvml() as nvml:
        here = nvidia.reachable(nvml, limits.gpus)
        if here == 0:
            return  # another job has these GPUs now
        problems = [f"only {here} of the {len(limits.gpus)} GPUs are this job's"]
        if here == len(limits.gpus):
            problems = _give_back(nvml, path, limits, run, ())
    if problems:
        named = ", ".join(map(str, limits.gpus))
        raise TelemetryError(
            f"limits that {run.directory} set are left on {named}: {'; '.join(problems)}; have an "
            "admin restore them (nvidia-smi -pl and -rgc), and then delete " + str(path)
        )


def _give_back(
    nvml: ModuleType, path: Path, limits: NodeLimits, run: RunPaths, before: tuple[str, ...]
) -> list[str]:
    """Restore the limits of the journal at ``path``, and write the result into the run's record.

    ``before`` are earlier problems. Returns the new ones.
    """
    record = run.node_limits(limits.node)
    with contextlib.suppress(OSError, RecordError):
        # The run's record was written later than the journal, and has more.
        written = read_record(record, NodeLimits)
        if written.begun_unix_s == limits.begun_unix_s:
            limits = written
    done = [nvidia.restore_limits(nvml, gpu) for gpu in limits.gpus]
    problems = [problem for _, of_gpu in done for problem in of_gpu]
    limits = dataclasses.replace(
        limits,
        gpus=tuple(gpu for gpu, _ in done),
        restored_unix_s=None if problems else time.time(),
        restored_early=not run.telemetry_stop.exists(),
        problems=(*limits.problems, *before, *problems),
    )
    try:
        if read_record(record, NodeLimits).begun_unix_s == limits.begun_unix_s:
            write_json(record, limits)
    except (OSError, RecordError) as error:
        print(f"{record} does not say that limits were given back: {error}", file=sys.stderr)
    if not problems:
        path.unlink()
    return problems


@contextlib.contextmanager
def _guarded(journal: Journal) -> Iterator[Path]:
    """Write the journal to this node's disk, and start a process that restores the limits if this
    process is killed. Yields the journal's path.

    Raises OSError, TelemetryError.
    """
    path = _directory() / f"{journal.limits.node}-{time.time_ns()}.json"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(path.parent):
        raise TelemetryError(
            f"{path.parent} must be a directory of this user's that nobody else may write, as what "
            "to give back is kept there; have it removed"
        )
    with whole_file(path, durable=True) as draft:
        write_json(draft, journal)
        lock = os.open(draft, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    command = (sys.executable, "-m", "workflow_lib.telemetry.limits", "guard", str(path))
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(
            command,
            bufsize=0,
            stdin=pipe,
            stdout=pipe,
            pass_fds=(lock,),
            start_new_session=True,
        ) as guard:
            assert guard.stdin is not None
            assert guard.stdout is not None
            if not guard.stdout.readline():
                path.unlink()
                raise TelemetryError("the process that would give limits back did not start")
            yield path
            # The guard may have been killed.
            with contextlib.suppress(BrokenPipeError):
                guard.stdin.write(b"done")
    finally:
        os.close(lock)


def _guard(path: Path) -> None:
    """Wait until the process that set limits has ended. If it was killed, restore them.

    Raises TelemetryError.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print("ready", flush=True)
    if sys.stdin.read() != "done":
        journal = read_record(path, Journal)
        _give_back_for(path, journal, RunPaths(Path(journal.run_directory)))


@contextlib.contextmanager
def _nvml() -> Iterator[ModuleType]:
    """Start NVML, and turn its errors into TelemetryError."""
    nvml = started_nvml()
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise TelemetryError(f"the driver did not answer as to limits: {error}") from None
    finally:
        nvml.nvmlShutdown()


def _directory() -> Path:
    return LOCAL / f"triptych-gpu-limits-{os.getuid()}"


def _is_own(directory: Path) -> bool:
    """Whether the directory exists, belongs to this user, and no other user may write it."""
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return False
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_ours and not status.st_mode & 0o022


def _has_lock(descriptor: int, patience_s: float) -> bool:
    """Try for ``patience_s`` seconds to lock the journal. Returns whether that succeeded."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_LOOK_EVERY_S)
        else:
            return True


def main(arguments: list[str] | None = None) -> int:
    """Run ``hold`` or ``give-back`` for a job script, or ``guard`` for ``hold``. Returns the exit
    code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m workflow_lib.telemetry.limits", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("hold", "give-back", "guard"):
        commands.add_parser(name).add_argument("path", type=Path)
    given = parser.parse_args(arguments)
    path: Path = given.path
    node = node_name()
    try:
        if given.command == "guard":
            _guard(path)
        elif given.command == "hold":
            hold(RunPaths(path.parent), read_record(path, Cell), node)
        else:
            give_back_leftovers(RunPaths(path.parent))
    except (OSError, TelemetryError, RecordError) as error:
        print(f"GPU limits on {node}: {error}", file=sys.stderr, flush=True)
        if given.command == "hold":
            leave_mark(RunPaths(path.parent).limits_failed(node))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
