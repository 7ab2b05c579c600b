"""Reads files that another user may have written: only regular files, only up to a bound; and their
lines, if they are CSV files."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from workflow_lib.records import bounds, ranges
from workflow_lib.records.bounds import Bound
from workflow_lib.records.columns import Column


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
    larger than ``bound``."""
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


Field = float | int | str | None


def read_header(line: bytes, columns: Sequence[Column]) -> tuple[Column, ...] | None:
    """The columns that a file has, by its first line. Only columns that were added later may be
    missing; None if it is another file's."""
    names = line.decode("utf-8", "replace").rstrip("\r\n").split(",")
    present = tuple(column for column in columns if column.name in names)
    whole = all(column.later or column.name in names for column in columns)
    return present if whole and [column.name for column in present] == names else None


def read_row(
    line: bytes, there: Sequence[Column], columns: Sequence[Column], required: Sequence[str] = ()
) -> dict[str, Field]:
    """The value of each of ``columns``; None for an empty field, and for a column that is not
    ``there``.

    Raises ValueError, which says what was expected, also where a ``required`` column is empty.
    """
    if len(line) > bounds.LINE_BYTES.most:
        raise ValueError(f"over {bounds.LINE_BYTES.most} bytes, more than any line has")
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("not text in UTF-8") from None
    if "\r" in text:
        raise ValueError("a carriage return within the line")
    fields = text.split(",") if text else []
    if len(fields) != len(there):
        raise ValueError(f"{len(fields)} fields, expected {len(there)}")
    row: dict[str, Field] = dict.fromkeys(column.name for column in columns)
    for column, field in zip(there, fields, strict=True):
        row[column.name] = value = _parsed(field, column)
        if value is None and column.name in required:
            raise ValueError(f"the row has no {column.name}")
    return row


def _parsed(text: str, column: Column) -> Field:
    if text == "":
        return None
    try:
        value: float | int | str = column.type(text)
    except ValueError:
        value = math.nan
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{column.name} is {shown(text)}, expected {_kind(column)}")
    if allowed := ranges.problem(column.name, value, column.range):
        raise ValueError(f"{column.name} is {shown(text)}, expected {allowed}")
    return value


def _kind(column: Column) -> str:
    return {float: "a finite number", int: "a whole number", str: "text"}[column.type]


def read_csv(
    path: Path, columns: Sequence[Column], required: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Field]]]:
    """Yield the line number and the parsed row of each line of a CSV file.

    An incomplete last line is left out. A column that a later version added, and that the file
    lacks, is None in all rows.

    Raises RecordError, which names file and line, if a line does not match ``columns``, or has
    nothing in a ``required`` one; and FileNotFoundError.
    """
    there = None
    with open_file(path) as stream:
        lines = iter(lambda: stream.readline(bounds.LINE_BYTES.most + 1), b"")
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n") and len(line) <= bounds.LINE_BYTES.most:
                break
            if there is None:
                there = read_header(line, columns)
                if there is None:
                    raise RecordError(f"{path}, line 1: not the expected column names")
                continue
            try:
                row = read_row(line, there, columns, required)
            except ValueError as error:
                raise RecordError(f"{path}, line {number}: {error}") from None
            yield number, row
    if there is None:
        raise RecordError(f"{path} is empty")
