"""Which processes of this machine run, and what signals end them."""

from __future__ import annotations

import signal
from pathlib import Path


def is_running(process: int) -> bool:
    """Whether a process is there; one that ended but was not waited for is not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was read
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # proc(5): the state follows the name


def signal_name(number: int) -> str:
    """A signal's name, e.g. "SIGKILL", or its number where it has none, as a real-time one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
