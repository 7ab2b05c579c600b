"""Reads files that another user may have written: only regular files, and only up to a bound."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from workflow_lib.records import bounds
from workflow_lib.records.bounds import Bound


class RecordError(ValueError):
    """A file does not have the contents that :mod:`workflow_lib.records` declares for it."""


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    A pipe could block the reader for ever, and a device may have no end. Raises OSError, and
    RecordError if the path is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:  # a null byte
        raise RecordError(f"{str(path)!r} is no name of a file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RecordError(f"{path}: a directory, pipe or device, expected a file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, bound: Bound) -> bytes:
    """The contents of a file. Raises OSError, and RecordError if it is not a regular file or is
    larger than ``bound``.
    """
    with open_file(path) as stream:
        # Not read(bound.most), which would allocate that many bytes.
        size = os.fstat(stream.fileno()).st_size
        content = stream.read() if size <= bound.most else b""
    if max(size, len(content)) > bound.most:
        raise RecordError(
            f"{path}: over {bound.most // 1024} KiB, more than {bound.what} has; it is damaged, "
            "or none of this workflow"
        )
    return content


def end_of_file(path: Path, most: int) -> bytes:
    """The last ``most`` bytes of a file. Raises the errors of :func:`open_file`."""
    with open_file(path) as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - most))
        return stream.read(most)


def shown(value: object, letters: int = bounds.VALUE_LETTERS.most) -> str:
    """A wrong value for a message: its repr, cut after ``letters`` characters."""
    text = f"a {type(value).__name__}"
    # repr raises ValueError for a number of more than 4300 digits.
    with suppress(ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= letters else f"{text[:letters]}…"
