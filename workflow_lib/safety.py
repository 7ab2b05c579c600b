"""Escapes control characters, finds and hides secrets, and makes directories for one user alone."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

HIDDEN = "‹hidden›"

#: names of variables that hold secrets; TOKENIZERS_PARALLELISM and MAX_TOKENS do not match
_SECRET = re.compile(
    r"SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL|(API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)[_-]?KEY"
    r"|TOKEN(_|$)|[A-Z0-9]_KEY$|SIGNATURE|(^|_)(PAT|PASS|PWD|AUTH|JWT|BEARER|COOKIE|PSK|SIG)(_|$)",
    re.IGNORECASE,
)
#: the user and password of an address, as in https://user:password@host (RFC 3986, section 3.2.1);
#: only the scheme's end is looked at, and the first colon ends the user, so no text is read twice
_PASSWORD = re.compile(r"(?<=[a-z0-9+.-])://[^/?#\s@:]*:[^/?#\s@]+@", re.IGNORECASE)
#: the user and password of an address, with or without a scheme
_USER = re.compile(
    r"(?<![\w+.:-])(?P<scheme>[\w+.-]{1,32}://)?"
    r"(?P<user>[^/?#\s@:\"',;]{0,256}:[^/?#\s\"',;]{1,256})@(?=\w)"
)
#: a shorter value would also be found within words, and is too short for a secret
_LEAST_LETTERS = 8
#: names that look like a secret's (PWD), but in which a shell keeps its directory
_NO_SECRETS = frozenset(("PWD", "OLDPWD"))
#: NAME=value, "name": "value", --name=value, ?name=value; only from the start of a word, because a
#: long word would otherwise be searched from each of its letters
_ASSIGNED = re.compile(
    rf"(?<!\w)(?<!\w-)(?P<name>[A-Za-z_]\w*(?:-\w+)*)(?P<between>[\"']?\s*[=:]\s*[\"']?)"
    rf"(?P<value>(?!//)[^\s\"',;&]{{{_LEAST_LETTERS},}})"
)
#: --name value, and a request's header: Bearer value
_FOLLOWED = re.compile(
    rf"(?<![\w-])(?P<name>--?[A-Za-z][\w-]*|Bearer)(?P<between>[ \t]+[\"']?)"
    rf"(?P<value>(?!-)[^\s\"',;&]{{{_LEAST_LETTERS},}})",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?[a-zA-Z/%]{0,4}", re.IGNORECASE)


def printable(text: str, letters: int | None = None) -> str:
    r"""``text`` with all characters escaped that are not visible characters, spaces or line ends.

    Causes and names may hold the output of any program. An escape sequence in them is then shown as
    ``\x1b[31m``, and does not affect the terminal. Text longer than ``letters`` is cut.
    """
    cut = letters is not None and len(text) > letters
    kept = "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in (text[:letters] if cut else text)
    )
    return f"{kept}…" if cut else kept


def names_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return bool(_SECRET.search(name))


def holds_password(text: str) -> bool:
    """Whether the text holds an address with a password in it."""
    return bool(_PASSWORD.search(text))


def hiding(environment: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that hides secrets in text.

    Secrets are the values of variables in ``environment`` whose names say so, what is assigned to
    such a name in the text or follows it as an option, and users with passwords before ``@``. Each
    line of a value of several lines is hidden.
    """
    values = {
        line.strip()
        for name, value in environment.items()
        if names_secret(name) and name not in _NO_SECRETS
        for line in value.splitlines()
        if len(line.strip()) >= _LEAST_LETTERS
    }
    # The longest first, because one may be part of another.
    known = re.compile("|".join(map(re.escape, sorted(values, key=lambda v: (-len(v), v)))))

    def hide(text: str) -> str:
        if values:
            text = known.sub(HIDDEN, text)
        if "@" in text:
            text = _USER.sub(_without_user, text)
        return _FOLLOWED.sub(_without_value, _ASSIGNED.sub(_without_value, text))

    return hide


def is_secret(name: str, value: str) -> bool:
    """Whether the value of something of this name is a secret, and not a count of tokens."""
    secret = names_secret(name) and len(value) >= _LEAST_LETTERS
    return secret and not _NUMBER.fullmatch(value)


def _without_user(match: re.Match[str]) -> str:
    return f"{match['scheme'] or ''}{HIDDEN}@"


def _without_value(match: re.Match[str]) -> str:
    name = match["name"].strip("-").replace("-", "_")
    value = HIDDEN if is_secret(name, match["value"]) else match["value"]
    return f"{match['name']}{match['between']}{value}"


def private_directory(within: Path, name: str) -> Path:
    """A directory in ``within`` that only this user can access. Later callers get the same one.

    Below ``/tmp`` another user may create a directory first. So the name has a random end, and a
    directory is used only if it belongs to this user, is not a link, and is closed to others.
    Processes that call this for the first time at the same time may get different ones. Raises
    OSError if no directory can be created.
    """
    if not any(_is_private(path) for path in within.glob(f"{name}-*")):
        tempfile.mkdtemp(prefix=f"{name}-", dir=within)
    return min(path for path in within.glob(f"{name}-*") if _is_private(path))


def _is_private(directory: Path) -> bool:
    try:
        attributes = directory.lstat()  # a link could lead to any directory of this user's
    except FileNotFoundError:  # removed since it was listed
        return False
    own = stat.S_ISDIR(attributes.st_mode) and attributes.st_uid == os.geteuid()
    return own and not stat.S_IMODE(attributes.st_mode) & 0o077
