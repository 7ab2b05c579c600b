"""Reads files that may be anybody's: regular files alone, up to a bound, and never for ever."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from workflow_lib.records import bounds
from workflow_lib.records.bounds import Bound


class RecordError(ValueError):
    """A file under ``results/`` does not hold what :mod:`workflow_lib.records` says it holds."""


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to be read.

    A pipe would have its reader wait for ever, and a device has no end. Raises OSError, and
    RecordError where the path leads to anything else than a file.
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
    """The whole file. Raises OSError, and RecordError where it is no file or beyond the bound."""
    with open_file(path) as stream:
        # Not a read of so many bytes, which would set aside as many.
        size = os.fstat(stream.fileno()).st_size
        content = stream.read() if size <= bound.most else b""
    if max(size, len(content)) > bound.most:
        raise RecordError(
            f"{path}: over {bound.most // 1024} KiB, more than {bound.what} has; it is damaged, "
            "or none of this workflow"
        )
    return content


def end_of_file(path: Path, most: int) -> bytes:
    """The last ``most`` bytes of a file. Raises as :func:`open_file`."""
    with open_file(path) as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - most))
        return stream.read(most)


def shown(value: object, letters: int = bounds.VALUE_LETTERS.most) -> str:
    """A wrong value as a message quotes it: as Python writes it, cut where it is long."""
    text = f"a {type(value).__name__}"
    # Python writes no number of more than 4300 digits.
    with suppress(ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= letters else f"{text[:letters]}…"
