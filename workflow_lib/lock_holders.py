"""Who holds Snakemake's lock of a directory, so that the lock of a dead one can be lifted.

Snakemake's lock is files in ``.snakemake/locks`` that name what is being made. They do not say who
wrote them, so that a Snakemake that was killed locks everybody out until somebody gives --unlock.
Each Snakemake of this workflow therefore says who it is before it locks, in
``.snakemake/lock_holders``.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workflow_lib import records
from workflow_lib.launch.processes import is_running, started_ticks
from workflow_lib.records import RecordError

#: the kernel's own PID namespace: what runs in another may be in a container, and another's to see
_HOSTS_NAMESPACE = "pid:[4026531836]"
#: a Snakemake locks within this time after it said who it is
_LOCKED_WITHIN_S = 3600.0


@dataclass(frozen=True)
class Holder:
    """A process that may hold the lock."""

    host: str
    #: /etc/machine-id; empty where there is none
    machine: str
    #: changes when the machine starts anew
    boot: str
    #: in which process ids are unique
    namespace: str
    process: int
    #: proc(5)'s starttime: another process with the same id has another
    started_ticks: str
    since_unix_s: float

    def __str__(self) -> str:
        """A clause that names it."""
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since_unix_s))
        return f"Snakemake {self.process} on {self.host} (since {since})"


@dataclass(frozen=True)
class Finding:
    """What was found of a directory's lock."""

    #: a line for the user; null where there is nothing to say
    said: str | None
    #: files of the lock that dead holders left, and these holders' own
    stale: tuple[Path, ...] = ()


def this_process() -> Holder:
    """This process as a holder."""
    return Holder(
        host=socket.gethostname(),
        machine=_read("/etc/machine-id"),
        boot=records.boot_id() or "",
        namespace=str(Path("/proc/self/ns/pid").readlink()),
        process=os.getpid(),
        started_ticks=started_ticks(os.getpid()),
        since_unix_s=time.time(),
    )


def announce(snakemake: Path, holder: Holder) -> Path:
    """Write that a process may lock; returns the file, which its end removes. Raises OSError."""
    path = snakemake / "lock_holders" / f"{holder.host}-{holder.process}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_json(path, holder)
    return path


def examine(snakemake: Path, own: Holder) -> Finding:
    """Whether the lock in ``snakemake``, a directory ``.snakemake``, is of the dead alone.

    A lock of a living process, of another host, or of nobody who is known is never stale.
    """
    locks = sorted(snakemake.glob("locks/*.lock"))
    holders = _holders(snakemake, own)
    dead = {path: each for path, each in holders.items() if each is not None and is_dead(each, own)}
    if not locks:
        # Whoever has not locked for so long was unlocked by --unlock, and cannot be asked.
        old_unix_s = time.time() - _LOCKED_WITHIN_S
        return Finding(
            None, tuple(p for p in holders if p in dead or _modified_unix_s(p) < old_unix_s)
        )
    others = [each for path, each in holders.items() if path not in dead]
    # A holder is written before its lock, by the same file server's clock.
    first = min(map(_modified_unix_s, dead), default=None)
    if others or first is None or any(_modified_unix_s(lock) < first for lock in locks):
        return Finding(_who_may_hold(others, own))
    names = ", ".join(map(str, dead.values()))
    return Finding(f"{names} ended without unlocking this directory", (*locks, *dead))


def _modified_unix_s(path: Path) -> float:
    """When a file was written; never, as infinity, for one that another Snakemake just removed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def is_dead(holder: Holder, own: Holder) -> bool:
    """Whether a holder has certainly ended, as far as can be seen from this process."""
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
        return False  # another user's
    started = started_ticks(holder.process)
    return not is_running(holder.process) or started != holder.started_ticks


def _holders(snakemake: Path, own: Holder) -> Mapping[Path, Holder | None]:
    """Every other holder by its file; None for a file that cannot be read."""
    found: dict[Path, Holder | None] = {}
    for path in sorted(snakemake.glob("lock_holders/*.json")):
        try:
            found[path] = records.read_record(path, Holder)
        except FileNotFoundError:
            continue  # it ended just now
        except (OSError, RecordError):
            found[path] = None
    return {path: each for path, each in found.items() if each is None or not _same(each, own)}


def _same(one: Holder, other: Holder) -> bool:
    fields = ("host", "process", "started_ticks", "boot")
    return all(getattr(one, name) == getattr(other, name) for name in fields)


def _who_may_hold(others: list[Holder | None], own: Holder) -> str:
    """A line on a lock that is not lifted, and what to do."""
    known = [each for each in others if each is not None]
    here = [each for each in known if each.host == own.host]
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
