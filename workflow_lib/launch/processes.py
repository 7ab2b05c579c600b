"""Which processes of this machine run, and what signals end them."""

from __future__ import annotations

import signal
from pathlib import Path


def is_running(process: int) -> bool:
    """Whether a process is there; one that ended but was not waited for is not."""
    fields = _stat(process)
    return bool(fields) and fields[0] != "Z"


def started_ticks(process: int) -> str:
    """When a process started, in clock ticks since the machine did; empty where it is gone."""
    fields = _stat(process)
    return fields[19] if fields else ""  # proc(5): field 22; two are before the state


def _stat(process: int) -> list[str]:
    """Fields of proc(5)'s stat from the state on, which follows the name; none where it is gone."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was read
        return []
    return stat.rpartition(")")[2].split()


def signal_name(number: int) -> str:
    """A signal's name, e.g. "SIGKILL", or its number where it has none, as a real-time one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
