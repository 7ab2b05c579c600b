"""Tells whether processes of this machine run, and names signals."""

from __future__ import annotations

import signal
from pathlib import Path


def is_running(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    fields = _stat(process)
    return bool(fields) and fields[0] != "Z"


def started_ticks(process: int) -> str:
    """When a process started, in clock ticks since boot; empty if it is gone."""
    fields = _stat(process)
    return fields[19] if fields else ""  # proc(5): field 22; two are before the state


def _stat(process: int) -> list[str]:
    """The fields of /proc/<process>/stat (proc(5)) from the state on; none if it is gone."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was read
        return []
    return stat.rpartition(")")[2].split()


def signal_name(number: int) -> str:
    """A signal's name, e.g. "SIGKILL". A real-time signal has only a number, e.g. "signal 40"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
