"""Makes text of a run's files fit for a page: without secrets or control characters,
and shortened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from workflow_lib.safety import holds_password, names_secret, printable

Clean = Callable[[str], str]

HIDDEN = "‹hidden›"
#: lines of a log that are shown, letters of a line, and bytes that are read from its end
LOG_LINES, _LINE_LETTERS, _END = 40, 200, 65536
#: a shorter value would also be found within words, and is too short for a secret
_LEAST_LETTERS = 8
#: names that look like a secret's (PWD), but in which a shell keeps its directory
_NO_SECRETS = frozenset(("PWD", "OLDPWD"))
_ADDRESS = re.compile(r"(?<![\w+.-])(?P<scheme>[\w+.-]+://)(?P<user>[^/?#\s]*@)")
#: NAME=value, "name": "value", --name=value; only from the start of a word, because a long word
#: would otherwise be searched from each of its letters
_ASSIGNED = re.compile(
    rf"(?<!\w)(?<!\w-)(?P<name>[A-Za-z_]\w*(?:-\w+)*)(?P<between>[\"']?\s*[=:]\s*[\"']?)"
    rf"(?P<value>[^\s\"',;&]{{{_LEAST_LETTERS},}})"
)
#: --name value, and a request's header: Bearer value
_FOLLOWED = re.compile(
    rf"(?<![\w-])(?P<name>--?[A-Za-z][\w-]*|Bearer)(?P<between>[ \t]+[\"']?)"
    rf"(?P<value>(?!-)[^\s\"',;&]{{{_LEAST_LETTERS},}})",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?[a-zA-Z/%]{0,4}", re.IGNORECASE)


def cleaning(environment: Mapping[str, str]) -> Clean:
    """Return a function that hides secrets in text, and spells out control characters.

    Secrets are the values of variables in ``environment`` whose names say so, what is assigned to
    such a name in the text or follows it as an option, and passwords in addresses: see
    :mod:`workflow_lib.safety`. Each line of a value of several lines is hidden.
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

    def clean(text: str) -> str:
        if values:
            text = known.sub(HIDDEN, text)
        if "://" in text:
            text = _ADDRESS.sub(_without_password, text)
        text = _FOLLOWED.sub(_without_value, _ASSIGNED.sub(_without_value, text)).expandtabs(4)
        return text if text.replace("\n", "").isprintable() else printable(text)

    return clean


def _without_password(found: re.Match[str]) -> str:
    return f"{found['scheme']}{HIDDEN}@" if holds_password(found[0]) else found[0]


def _without_value(found: re.Match[str]) -> str:
    name = found["name"].strip("-").replace("-", "_")
    value = clean_value(name, found["value"], str)
    return f"{found['name']}{found['between']}{value}"


def clean_value(name: str, value: str, clean: Clean) -> str:
    """A value made fit to be shown, or the mark that it is hidden if its name says that it is a
    secret."""
    secret = names_secret(name) and len(value) >= _LEAST_LETTERS and not _NUMBER.fullmatch(value)
    return HIDDEN if secret else clean(value)


def tail(path: Path, clean: Clean) -> str:
    """The last lines of a log, each cut to what a line on a page holds; "" where it is empty.

    If a line was overwritten, as progress bars do, its last state is kept, as on a terminal. Bytes
    that are not UTF-8 are replaced. Raises OSError if the file cannot be read.
    """
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _END))
        text = stream.read(_END).decode("utf-8", "replace")
    if size > _END:
        # Part of a line could be part of a secret.
        text = text.partition("\n")[2] or f"(its last line is longer than {_END} bytes)"
    if not text.strip():
        return ""
    lines = text.rstrip("\n").split("\n")[-LOG_LINES:]
    return "\n".join(shortened(clean(each.rstrip("\r").rpartition("\r")[2])) for each in lines)


def shortened(line: str, letters: int = _LINE_LETTERS) -> str:
    """The first ``letters`` of a line, and how many are left out."""
    more = len(line) - letters
    return line if more <= 0 else f"{line[:letters]} … ({more} more)"
