"""What the kernel counts in this process's control group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def out_of_memory_kills(
    membership: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Processes of this control group that the kernel ended so far for want of memory.

    ``memory.events`` of version 2, else ``memory.oom_control`` of version 1: both have a line
    ``oom_kill <count>`` (admin-guide/cgroup-v2 and cgroup-v1/memory of Linux's documentation). A
    group without a file of its own is counted with the nearest one above that has one.

    Returns None where neither can be read, as in a container that does not show them.
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
            continue  # not there, or older than the count: the next one may have it
    return None


def _files(line: str, mounted: Path) -> Iterator[Path]:
    """Where a line of /proc/<process>/cgroup may have its count, the process's own group first."""
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
