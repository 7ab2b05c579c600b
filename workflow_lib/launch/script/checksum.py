"""The checksum in a job script: tells the script as rendered from one that was edited by hand.

It is a comment below the interpreter's line: the SHA-256 of everything below it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

INTERPRETER = "#!/usr/bin/env bash"
_PREFIX = b"# sha256 of all lines below: "


def with_checksum(body: str) -> str:
    """The script: the interpreter's line, the checksum, and ``body``."""
    return f"{INTERPRETER}\n{_PREFIX.decode()}{_digest(body.encode()).decode()}\n{body}"


def is_intact(script: Path) -> bool:
    """Whether the script's body still has the checksum that it was rendered with.

    Raises FileNotFoundError.
    """
    # Not read as text: that would make an editor's other line ends look like the rendered ones.
    head, found, rest = script.read_bytes().partition(_PREFIX)
    digest, _, body = rest.partition(b"\n")
    return bool(found) and head == INTERPRETER.encode() + b"\n" and digest == _digest(body)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
