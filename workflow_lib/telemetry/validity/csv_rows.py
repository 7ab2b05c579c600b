"""Reads CSV files of telemetry and training row by row, so that they need little memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from workflow_lib.records import Column, bounds, held, open_file, ranges

Field = float | int | str | bool | None


class InvalidTelemetryError(Exception):
    """Telemetry is not valid. The message is one sentence that says why."""


def read_csv(path: Path, columns: Sequence[Column]) -> Iterator[tuple[int, dict[str, Field]]]:
    """Yield the line number and the parsed row of each line of a CSV file.

    An incomplete last line is left out. A column that a later version added, and that the file
    lacks, is None in all rows.

    Raises InvalidTelemetryError, which names file and line, if a line does not match ``columns``.
    Raises FileNotFoundError.
    """
    names = [column.name for column in columns]
    there: Sequence[Column] | None = None
    with open_file(path) as stream:
        lines = iter(lambda: stream.readline(bounds.LINE_BYTES.most + 1), b"")
        for line, raw in enumerate(lines, start=1):
            if len(raw) > bounds.LINE_BYTES.most:
                raise InvalidTelemetryError(
                    f"{path}, line {line}: over {bounds.LINE_BYTES.most} bytes, more than any has."
                )
            if not raw.endswith(b"\n"):
                break
            fields = raw.decode("utf-8", "replace").rstrip("\r\n").split(",")
            if line == 1:
                there = held(fields, columns)
                if there is None:
                    raise InvalidTelemetryError(f"{path}, line 1: not the expected column names.")
                continue
            assert there is not None
            if len(fields) != len(there):
                raise InvalidTelemetryError(
                    f"{path}, line {line}: {len(fields)} fields, expected {len(there)}."
                )
            row: dict[str, Field] = dict.fromkeys(names)
            try:
                row.update((c.name, parse(f, c)) for c, f in zip(there, fields, strict=True))
            except ValueError as error:
                raise InvalidTelemetryError(f"{path}, line {line}: {error}.") from None
            yield line, row
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
    for line, row in read_csv(path, columns):
        where = f"{path}, line {line}"
        for name in required:
            if row[name] is None:
                raise InvalidTelemetryError(f"{where}: the row has no {name}.")
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


def parse(text: str, column: Column) -> Field:
    """A field's value; None if it is empty. Raises ValueError, which says what was expected."""
    if text == "":
        return None
    if column.type is str:
        return text
    try:
        value: float | int = int(text) if column.type is int else float(text)
    except ValueError:
        raise ValueError(f"{column.name} is {text[:40]!r}, expected a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{column.name} is {text[:40]!r}, expected a finite number")
    if allowed := ranges.problem(column.name, value):
        raise ValueError(f"{column.name} is {text[:40]!r}, expected {allowed}")
    return value
