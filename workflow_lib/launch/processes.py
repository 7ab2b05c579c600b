"""Whether a process of this machine still runs."""

from __future__ import annotations

from pathlib import Path


def is_running(process: int) -> bool:
    """Whether a process is there; one that ended but was not waited for is not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was read
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
