"""What a run's logs say last."""

from __future__ import annotations

import os
from pathlib import Path

#: how much of a log's end is looked at, in bytes: logs grow with every step
_END = 65536


def end_of(log: Path) -> str:
    """The last of a log's text. Raises OSError."""
    with log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _END))
        return stream.read().decode("utf-8", "replace")


def last_line(log: Path) -> str:
    """The last line that says something (a launcher's ruled line does not), or that none does."""
    try:
        lines = end_of(log).splitlines()
    except OSError as error:
        return f"{log} is missing" if isinstance(error, FileNotFoundError) else str(error)
    telling = (line.strip() for line in reversed(lines) if any(map(str.isalnum, line)))
    return next(telling, f"{log} is empty")
