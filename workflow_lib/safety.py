"""Escapes control characters, finds secrets, and makes directories for one user alone."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

#: names of variables that hold secrets; TOKENIZERS_PARALLELISM and MAX_TOKENS do not match
_SECRET = re.compile(
    r"SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL|(API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)_?KEY"
    r"|TOKEN(_|$)|(^|_)(PAT|PASS|PWD|AUTH|JWT|BEARER|COOKIE)(_|$)",
    re.IGNORECASE,
)
#: the user and password of an address, as in https://user:password@host (RFC 3986, section 3.2.1);
#: only the scheme's end is looked at, and the first colon ends the user, so no text is read twice
_PASSWORD = re.compile(r"(?<=[a-z0-9+.-])://[^/?#\s@:]*:[^/?#\s@]+@", re.IGNORECASE)


def printable(text: str, letters: int | None = None) -> str:
    r"""``text`` with all characters escaped that are not visible characters, spaces or line ends.

    Causes and names may hold the output of any program. An escape sequence in them is then shown as
    ``\x1b[31m``, and does not affect the terminal. Text longer than ``letters`` is cut.
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
    """A directory in ``within`` that only this user can access. Later callers get the same one.

    Below ``/tmp`` another user may create a directory first. So the name has a random end, and a
    directory is used only if it belongs to this user, is not a link, and is closed to others.
    Processes that call this for the first time at the same time may get different ones. Raises
    OSError if no directory can be created.
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
