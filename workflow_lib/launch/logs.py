"""What a run's logs say last."""

from __future__ import annotations

import os
from pathlib import Path

#: how much of a log's end is looked at, in bytes: logs grow with every step
_END = 65536


def last_line(log: Path) -> str:
    """The last line that says something (a launcher's ruled line does not), or that none does."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _END))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return f"{log} is missing" if isinstance(error, FileNotFoundError) else str(error)
    telling = (line.strip() for line in reversed(lines) if any(map(str.isalnum, line)))
    return next(telling, f"{log} is empty")
