"""Reads CSV files of telemetry and training row by row, so that they need little memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from workflow_lib.records import Column, bounds, open_file
from workflow_lib.records.reading import Field, read_header, read_row


class InvalidTelemetryError(Exception):
    """Telemetry is not valid. The message is one sentence that says why."""


def read_csv(
    path: Path, columns: Sequence[Column], required: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Field]]]:
    """Yield the line number and the parsed row of each line of a CSV file.

    An incomplete last line is left out. A column that a later version added, and that the file
    lacks, is None in all rows.

    Raises InvalidTelemetryError, which names file and line, if a line does not match ``columns``,
    or has nothing in a ``required`` one.
    Raises FileNotFoundError.
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
                    raise InvalidTelemetryError(f"{path}, line 1: not the expected column names.")
                continue
            try:
                row = read_row(line, there, columns, required)
            except ValueError as error:
                raise InvalidTelemetryError(f"{path}, line {number}: {error}.") from None
            yield number, row
    if there is None:
        raise InvalidTelemetryError(f"{path} is empty.")


def timed_rows(
    path: Path, columns: Sequence[Column], required: Sequence[str], gpus: int | None = None
) -> Iterator[tuple[str, dict[str, Field]]]:
    """Yield the place of each row, for messages, and its fields. Check the order of their times.

    Every row must have the columns ``required``, the first of which is the time. Times may not run
    backwards: for each GPU, or in the whole file if it has no GPUs. ``gpus`` is the number of GPUs;
    None if it is not known. Raises the errors of :func:`read_csv`, and InvalidTelemetryError for a
    row that breaks these rules.
    """
    latest: dict[Field, float] = {}
    for line, row in read_csv(path, columns, required):
        where = f"{path}, line {line}"
        now, gpu = row[required[0]], row.get("gpu")
        assert isinstance(now, float | int)
        if isinstance(gpu, int):
            if gpu < 0 or (gpus is not None and gpu >= gpus):
                raise InvalidTelemetryError(f"{where}: there is no GPU {gpu} on this node.")
            where += f": GPU {gpu}"
        if now < latest.get(gpu, -math.inf):
            raise InvalidTelemetryError(f"{where}: the clock went backwards.")
        latest[gpu] = now
        yield where, row
