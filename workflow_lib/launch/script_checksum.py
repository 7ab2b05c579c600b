"""The checksum in a job script, which shows whether the script was edited by hand.

It is a comment in the script's second line: the SHA-256 of all lines below.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

INTERPRETER = "#!/usr/bin/env bash"
_PREFIX = b"# sha256 of all lines below: "


def with_checksum(body: str) -> str:
    """The whole script: the interpreter's line, the checksum, and ``body``."""
    return f"{INTERPRETER}\n{_PREFIX.decode()}{_digest(body.encode()).decode()}\n{body}"


def is_intact(script: Path) -> bool:
    """Whether the script's body still has the checksum in its second line.

    Raises FileNotFoundError.
    """
    # Read as bytes: reading as text would hide line ends that an editor changed.
    head, prefix, rest = script.read_bytes().partition(_PREFIX)
    digest, _, body = rest.partition(b"\n")
    return bool(prefix) and head == INTERPRETER.encode() + b"\n" and digest == _digest(body)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
