"""Reads a line of a CSV file of telemetry or training: its fields, or what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workflow_lib.records import bounds, ranges
from workflow_lib.records.columns import Column
from workflow_lib.records.reading import shown

Field = float | int | str | None


def read_header(line: bytes, columns: Sequence[Column]) -> tuple[Column, ...] | None:
    """The columns that a file has, by its first line. Only columns that were added later may be
    missing; None if it is another file's.
    """
    names = line.decode("utf-8", "replace").rstrip("\r\n").split(",")
    there = tuple(each for each in columns if each.name in names)
    whole = all(each.later or each.name in names for each in columns)
    return there if whole and [each.name for each in there] == names else None


def read_row(
    line: bytes,
    there: Sequence[Column],
    columns: Sequence[Column],
    required: Sequence[str] = (),
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
