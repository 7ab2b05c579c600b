"""Reads the newest rows of a CSV file that is being written, at a cost that its length does not
change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from workflow_lib.records import Column, RecordError, bounds, open_file
from workflow_lib.records.reading import Field, read_header, read_row


def newest_rows(path: Path, columns: Sequence[Column]) -> Iterator[dict[str, Field]]:
    """Yield rows from the last one backwards, within the file's last ``WATCHED_BYTES``.

    A row that is being written is left out. A file that does not exist, or has no complete header
    yet, has no rows. Raises RecordError if a line does not match ``columns``, and OSError.
    """
    try:
        stream = open_file(path)
    except FileNotFoundError:
        return
    with stream:
        header = stream.readline(bounds.LINE_BYTES.most + 1)
        if not header.endswith(b"\n"):
            return
        there = read_header(header, columns)
        if there is None:
            raise RecordError(f"{path}:1: not the expected column names")
        first = stream.tell()
        start = max(first, stream.seek(0, os.SEEK_END) - bounds.WATCHED_BYTES.most)
        stream.seek(start)
        lines = stream.read(bounds.WATCHED_BYTES.most).split(b"\n")
    lines.pop()  # empty, or a row that is being written
    if start > first:
        lines = lines[1:]  # the first line is incomplete
    for line in reversed(lines):
        try:
            yield read_row(line, there, columns)
        except ValueError as error:
            raise RecordError(f"{path}: {error}") from None
