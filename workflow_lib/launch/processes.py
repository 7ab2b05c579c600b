"""Which processes of this machine run, under which, and what signals end them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path


def is_running(process: int) -> bool:
    """Whether a process is there; one that ended but was not waited for is not."""
    fields = _fields(process)
    return bool(fields) and fields[0] != "Z"


def descendants(process: int) -> Iterator[int]:
    """Every process that ``process``, or one of its descendants, started and did not outlive."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and (fields := _fields(int(path.name))):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    waiting = [process]
    while waiting:
        found = children.get(waiting.pop(), [])
        yield from found
        waiting += found


def arguments(process: int) -> list[str]:
    """How the process was called; empty where it is gone."""
    try:
        text = Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.decode(errors="replace").split("\0")[:-1]


def signal_name(number: int) -> str:
    """A signal's name, e.g. "SIGKILL", or its number where it has none, as a real-time one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _fields(process: int) -> list[str]:
    """Of proc(5)'s stat what follows the name, the state and the parent first; empty where the
    process is gone.
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was read
        return []
    return stat.rpartition(")")[2].split()
