"""Reads CSV files of telemetry and training row by row, so that they need little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from workflow_lib.records import bounds
from workflow_lib.records.columns import Column
from workflow_lib.records.reading import Field, RecordError, open_file, read_header, read_row


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
