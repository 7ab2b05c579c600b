"""Names users and owners of files in messages."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def user_name(number: int) -> str:
    """The name of a user; "user <number>" if the machine knows none."""
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return f"user {number}"


def may(path: Path, how: int) -> bool:
    """Whether this process may do with ``path`` what ``how``, as of os.access, says."""
    return os.access(path, how, effective_ids=True)


def owner_in_the_way(path: Path) -> str | None:
    """Says to whom belongs what keeps this user from reading or writing ``path``: the file, or the
    lowest directory above it that exists. None if that is this user's own, or cannot be told.
    """
    there = next(each for each in (path, *path.absolute().parents) if may(each, os.F_OK))
    try:
        if there.is_file() and may(there, os.R_OK) and not may(there.parent, os.W_OK):
            there = there.parent  # files are replaced, so the directory must be writable
        number = there.stat().st_uid
    except OSError:
        return None
    return None if number == os.getuid() else f"{there} belongs to {user_name(number)}"
