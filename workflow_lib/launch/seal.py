"""Tells a job script as rendered from one that was edited by hand.

The seal is a comment near the top of the script: the SHA-256 of everything below it.
"""

from __future__ import annotations

import hashlib

_PREFIX = "# sha256 of all lines below: "


def seal(head: str, body: str) -> str:
    """The script: ``head`` (the interpreter's line), the seal, and ``body``."""
    return f"{head}\n{_PREFIX}{_digest(body)}\n{body}"


def is_intact(script: str) -> bool:
    """Whether the script's body is what it was sealed with."""
    _, found, rest = script.partition(_PREFIX)
    digest, _, body = rest.partition("\n")
    return bool(found) and digest == _digest(body)


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
