"""Makes text of a run's files fit for a page: without secrets or control characters,
and shortened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from workflow_lib.safety import HIDDEN, hiding, is_secret, printable

Clean = Callable[[str], str]

#: lines of a log that are shown, letters of a line, and bytes that are read from its end
LOG_LINES, _LINE_LETTERS, _END = 40, 200, 65536


def cleaning(environment: Mapping[str, str]) -> Clean:
    """Return a function that hides secrets in text, as :func:`workflow_lib.safety.hiding`, and
    spells out control characters."""
    hide = hiding(environment)

    def clean(text: str) -> str:
        text = hide(text).expandtabs(4)
        return text if text.replace("\n", "").isprintable() else printable(text)

    return clean


def clean_value(name: str, value: str, clean: Clean) -> str:
    """A value made fit to be shown, or the mark that it is hidden if its name says that it is a
    secret."""
    return HIDDEN if is_secret(name, value) else clean(value)


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
