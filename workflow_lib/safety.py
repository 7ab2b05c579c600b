"""What keeps text text, secrets out of files, and other users out of directories."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

#: TOKENIZERS_PARALLELISM and MAX_TOKENS are none
_SECRET = re.compile(
    r"SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL|(API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)_?KEY"
    r"|TOKEN(_|$)|(^|_)(PAT|PASS|PWD|AUTH|JWT|BEARER|COOKIE)(_|$)",
    re.IGNORECASE,
)
#: the user and password of an address, as in https://user:password@host (RFC 3986, section 3.2.1)
_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]*:[^/?#\s@]+@", re.IGNORECASE)


def printable(text: str) -> str:
    r"""``text`` with all that is no visible character, space or end of a line spelled out.

    A cause holds what some program said, and a name what a directory is called: on a terminal an
    escape sequence in them shows as ``\x1b[31m``, and moves and colours nothing.
    """
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in text
    )


def names_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return bool(_SECRET.search(name))


def holds_password(text: str) -> bool:
    """Whether the text holds an address with a password in it."""
    return bool(_PASSWORD.search(text))


def private_directory(directory: Path) -> Path:
    """Make ``directory``, for this user alone, where it does not exist; returns it.

    Below ``/tmp`` somebody else may have come first. Raises PermissionError where the directory is
    another user's, or a link, or others can write it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()  # a link could lead to any directory of this user's
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not own or stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(
            f"{directory} belongs to somebody else, is a link, or can be written by others; remove "
            "it, or set TMPDIR to a directory of your own"
        )
    return directory
