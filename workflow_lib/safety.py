"""What keeps text text, secrets out of files, and other users out of directories."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

#: TOKENIZERS_PARALLELISM and MAX_TOKENS are none
_SECRET = re.compile(
    r"SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL|(API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)_?KEY"
    r"|TOKEN(_|$)|(^|_)(PAT|PASS|PWD|AUTH|JWT|BEARER|COOKIE)(_|$)",
    re.IGNORECASE,
)
#: the user and password of an address, as in https://user:password@host (RFC 3986, section 3.2.1)
_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]*:[^/?#\s@]+@", re.IGNORECASE)


def printable(text: str, letters: int | None = None) -> str:
    r"""``text`` with all that is no visible character, space or end of a line spelled out.

    A cause holds what some program said, and a name what a directory is called: on a terminal an
    escape sequence in them shows as ``\x1b[31m``, and moves and colours nothing. What
    is longer than ``letters`` is cut.
    """
    cut = letters is not None and len(text) > letters
    kept = "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in (text[:letters] if cut else text)
    )
    return f"{kept}…" if cut else kept


def names_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return bool(_SECRET.search(name))


def holds_password(text: str) -> bool:
    """Whether the text holds an address with a password in it."""
    return bool(_PASSWORD.search(text))


def private_directory(within: Path, name: str) -> Path:
    """A directory in ``within`` for this user alone, and the same one for later callers.

    Below ``/tmp`` somebody else may make a directory first. So the name has an end that nobody
    can foretell, and only a directory that is this user's, is no link and is closed to others is
    taken. Processes that call this at once for the first time may get different ones. Raises
    OSError where nothing can be made.
    """
    if not any(_is_private(each) for each in within.glob(f"{name}-*")):
        tempfile.mkdtemp(prefix=f"{name}-", dir=within)
    return min(each for each in within.glob(f"{name}-*") if _is_private(each))


def _is_private(directory: Path) -> bool:
    try:
        found = directory.lstat()  # a link could lead to any directory of this user's
    except FileNotFoundError:  # removed since it was listed
        return False
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return own and not stat.S_IMODE(found.st_mode) & 0o077
