"""Reads the ends of a run's logs, and their beginnings."""

from __future__ import annotations

import os
from pathlib import Path

#: how much of a log's beginning and of its end is read, in bytes: logs grow with every step
_END = 65536


def end_of(log: Path) -> str:
    """The last 64 KiB of a log as text. Raises OSError."""
    with log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _END))
        return stream.read().decode("utf-8", "replace")


def ends_of(log: Path) -> str:
    """The first and the last 64 KiB of a log as text, in whole lines; a shorter log whole.

    Raises OSError.
    """
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        if size <= 2 * _END:
            return stream.read().decode("utf-8", "replace")
        first = stream.read(_END).rpartition(b"\n")[0]
        stream.seek(size - _END)
        return (first + b"\n" + stream.read().partition(b"\n")[2]).decode("utf-8", "replace")
