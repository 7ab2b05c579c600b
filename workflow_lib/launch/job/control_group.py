"""Reads how many processes of this control group the kernel killed because memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


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
