"""Writes files and records that readers see whole or not at all, and names their owners in
messages."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workflow_lib.records import bounds
from workflow_lib.safety import printable


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
    lowest directory above it that exists. None if that is this user's own, or cannot be told."""
    there = next(
        candidate for candidate in (path, *path.absolute().parents) if may(candidate, os.F_OK)
    )
    try:
        if there.is_file() and may(there, os.R_OK) and not may(there.parent, os.W_OK):
            there = there.parent  # files are replaced, so the directory must be writable
        number = there.stat().st_uid
    except OSError:
        return None
    return None if number == os.getuid() else f"{there} belongs to {user_name(number)}"


@contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Write ``path`` through a temporary file in the same directory, whose path this yields.

    If the block succeeds, the temporary file replaces ``path``, so a reader sees the old content or
    the new. If the block raises, the temporary file is removed. The file keeps the mode that the
    block gave it. With ``durable`` the content is synced to disk first, so that this holds even
    after a crash. Creates the directory. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        if durable:
            with draft.open("rb") as stream:
                os.fsync(stream.fileno())
        draft.replace(path)
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename is None:
            # As of polars, which names a part of the draft's path in a text.
            code = errno.EACCES
            raise PermissionError(code, os.strerror(code), str(path)) from None
        # Nobody has asked for the draft, and a write that finds no room names no file.
        unnamed = error.filename is None and error.errno in _REMEDY
        if unnamed or str(error.filename) == str(draft):
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: Path, record: Any) -> None:
    """Write a dataclass or plain data as JSON, whole or not at all.

    The text is written to a temporary file in the same directory, synced to disk, and renamed. So a
    reader sees the old content or the new, even after a crash.

    Raises ValueError for NaN and infinities, and OSError.
    """
    plain = dataclasses.asdict(record) if dataclasses.is_dataclass(record) else record  # type: ignore[arg-type]
    with whole_file(path, durable=True) as draft:
        draft.write_text(_text(plain) + "\n", encoding="utf-8")


def _text(plain: Any) -> str:
    """JSON text with a line for each key, and for each object in a list of objects.

    With an indent, Python uses its slow encoder. The one in C writes the rows of a run's GPUs in a
    tenth of the time, so these are encoded without an indent.
    """
    encoded = functools.partial(json.dumps, allow_nan=False, ensure_ascii=False)

    def value_text(value: Any) -> str:
        if value and isinstance(value, (list, tuple)) and all(isinstance(v, dict) for v in value):
            rows = ",\n".join(f"    {encoded(row)}" for row in value)
            return f"[\n{rows}\n  ]"
        return encoded(value, indent=2).replace("\n", "\n  ")

    if not isinstance(plain, dict) or not plain:
        return encoded(plain, indent=2)
    items = (f"  {encoded(str(key))}: {value_text(value)}" for key, value in plain.items())
    return "{\n" + ",\n".join(items) + "\n}"


#: what to do about an error of the system
_REMEDY = {
    errno.ENOSPC: "make room there, or name another place",
    errno.EDQUOT: "make room there, or name another place",
}


def error_text(error: Exception) -> str:
    """The words of an error for a user: the system's with the file that it is about, and with what
    to do; those of the product as they are."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    remedy = _REMEDY.get(
        error.errno or 0, "name a file that you may read, or a place where you may write"
    )
    path = Path(os.fsdecode(error.filename))
    if isinstance(error, PermissionError) and (whose := owner_in_the_way(path)):
        remedy = f"{whose}. Have its owner do it, or {remedy}"
    return f"{path}: {error.strerror}; {remedy}"


def report_error(program: str, error: Exception) -> int:
    """Print what went wrong, as the program's last words; returns its exit code."""
    text = f"{program}: {error_text(error)}"
    print(printable(text, bounds.MESSAGE_LETTERS.most), file=sys.stderr)
    return 1
