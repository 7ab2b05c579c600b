"""Finds out which process holds Snakemake's lock of a directory, so that the lock of a dead process
can be removed.

Snakemake's lock consists of files in ``.snakemake/locks`` that name the files being made. They do
not name the process. So after a Snakemake was killed, the directory stays locked until a user gives
--unlock. Each Snakemake of this workflow therefore records its process in
``.snakemake/lock_holders`` before it locks.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workflow_lib.launch.processes import is_running, started_ticks
from workflow_lib.records.files import read_record
from workflow_lib.records.paths import boot_id
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import write_json

#: the host's own PID namespace; processes in another one may be in a container and cannot be seen
_HOSTS_NAMESPACE = "pid:[4026531836]"
#: a Snakemake locks within this time after it recorded its process
_LOCKED_WITHIN_S = 3600.0


@dataclass(frozen=True)
class Holder:
    """A process that may hold the lock."""

    host: str
    #: /etc/machine-id; empty if there is none
    machine: str
    #: the kernel's boot id
    boot: str
    #: the PID namespace, in which process ids are unique
    namespace: str
    process: int
    #: starttime of proc(5), which distinguishes processes with the same id
    started_ticks: str
    since_unix_s: float

    def __str__(self) -> str:
        """The process's name for messages."""
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since_unix_s))
        return f"Snakemake {self.process} on {self.host} (since {since})"


@dataclass(frozen=True)
class Finding:
    """The result of examining a directory's lock."""

    #: a line for the user; null if there is nothing to say
    message: str | None
    #: lock files that dead holders left, and the records of these holders
    stale: tuple[Path, ...] = ()


def this_process() -> Holder:
    """This process as a holder."""
    return Holder(
        host=socket.gethostname(),
        machine=_read("/etc/machine-id"),
        boot=boot_id() or "",
        namespace=str(Path("/proc/self/ns/pid").readlink()),
        process=os.getpid(),
        started_ticks=started_ticks(os.getpid()),
        since_unix_s=time.time(),
    )


def announce(snakemake: Path, holder: Holder) -> Path:
    """Record that a process may lock. Returns the file, which the process removes at its end.

    Raises OSError.
    """
    path = snakemake / "lock_holders" / f"{holder.host}-{holder.process}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, holder)
    return path


def examine(snakemake: Path, own: Holder) -> Finding:
    """Find out whether all holders of the lock in ``snakemake``, a directory ``.snakemake``, are
    dead.

    A lock is never stale if a holder is alive, ran on another host, or left no record.
    """
    locks = sorted(snakemake.glob("locks/*.lock"))
    holders = _holders(snakemake, own)
    dead = {
        path: holder
        for path, holder in holders.items()
        if holder is not None and is_dead(holder, own)
    }
    if not locks:
        # There is no lock. A holder with an old record has ended, or --unlock removed its lock.
        old_unix_s = time.time() - _LOCKED_WITHIN_S
        return Finding(
            None, tuple(p for p in holders if p in dead or _modified_unix_s(p) < old_unix_s)
        )
    others = [holder for path, holder in holders.items() if path not in dead]
    # A holder's record is older than its lock, by the clock of the same file server.
    first = min(map(_modified_unix_s, dead), default=None)
    if others or first is None or any(_modified_unix_s(lock) < first for lock in locks):
        return Finding(_who_may_hold(others, own))
    names = ", ".join(map(str, dead.values()))
    return Finding(f"{names} ended without unlocking this directory", (*locks, *dead))


def _modified_unix_s(path: Path) -> float:
    """When a file was written, in Unix time; infinity if another Snakemake has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def is_dead(holder: Holder, own: Holder) -> bool:
    """Whether a holder has certainly ended; False if this process cannot tell."""
    if (holder.host, holder.machine) != (own.host, own.machine):
        return False
    if holder.boot != own.boot:
        namespaces = {holder.namespace, own.namespace}
        return bool(own.machine) and namespaces == {_HOSTS_NAMESPACE}
    if holder.namespace != own.namespace:
        return False
    try:
        os.kill(holder.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # the process exists and belongs to another user
    started = started_ticks(holder.process)
    return not is_running(holder.process) or started != holder.started_ticks


def _holders(snakemake: Path, own: Holder) -> Mapping[Path, Holder | None]:
    """File → holder, for all holders but ``own``; None for a file that cannot be read."""
    holders: dict[Path, Holder | None] = {}
    for path in sorted(snakemake.glob("lock_holders/*.json")):
        try:
            holders[path] = read_record(path, Holder)
        except FileNotFoundError:
            continue  # the process has just ended
        except (OSError, RecordError):
            holders[path] = None
    return {
        path: holder for path, holder in holders.items() if holder is None or not _same(holder, own)
    }


def _same(one: Holder, other: Holder) -> bool:
    fields = ("host", "process", "started_ticks", "boot")
    return all(getattr(one, name) == getattr(other, name) for name in fields)


def _who_may_hold(others: list[Holder | None], own: Holder) -> str:
    """A line that says which processes may hold the lock, and what to do."""
    known = [other for other in others if other is not None]
    here = [holder for holder in known if holder.host == own.host]
    if here:
        return (
            f"{', '.join(map(str, here))} works in this directory. If both would make the same "
            "files, this one is refused. Let that one finish"
        )
    who = ", ".join(map(str, known)) or "somebody who left no name"
    return (
        f"{who} locked this directory, and {own.host} cannot see whether it still runs. "
        "If it has ended, give this command once with --unlock, then again without"
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
