"""Reads the CSV files of telemetry and training, and says which line is wrong where one is.

A file whose last line has no end was cut off while that line was being written, so the line is
dropped. Any other line that is not what its columns say is an error: it is evidence of damage.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from workflow_lib.analysis.tables import schema
from workflow_lib.records import Column, RecordError

_PARSERS = {float: float, int: int, str: str}


def read_rows(path: Path, columns: Sequence[Column], required: Sequence[str]) -> pl.DataFrame:
    """Read a CSV file of exactly ``columns``; an empty field is null.

    ``required`` names the columns that may not be empty. Raises FileNotFoundError, or RecordError
    with the file, the line and the column that are wrong.
    """
    text = path.read_bytes()
    text = text[: text.rfind(b"\n") + 1]
    if not text:
        raise RecordError(f"{path}:1: empty, expected a header; its writer never got to write it")
    names = [column.name for column in columns]
    header = text[: text.index(b"\n")].rstrip(b"\r").decode("utf-8", "replace")
    if header.split(",") != names:
        raise RecordError(f"{path}:1: the header is {header!r}, expected {','.join(names)!r}")
    # A line with too many fields fails to parse. One with too few would silently be filled up, but
    # then there are fewer commas than there should be.
    if text.count(b",") != (len(names) - 1) * text.count(b"\n"):
        _raise_for_bad_line(path, text, columns, required, "the number of fields differs")
    try:
        frame = pl.read_csv(text, schema=schema(columns), quote_char=None)
    except pl.exceptions.PolarsError as error:
        _raise_for_bad_line(path, text, columns, required, str(error).splitlines()[0])
    floats = [column.name for column in columns if column.type is float]
    finite = frame.select(pl.col(floats).is_finite().all()).row(0) if floats else ()
    if not all(finite) or sum(frame.select(pl.col(list(required)).null_count()).row(0)):
        _raise_for_bad_line(path, text, columns, required, "a value is missing or not finite")
    return frame


def _raise_for_bad_line(
    path: Path, text: bytes, columns: Sequence[Column], required: Sequence[str], seen: str
) -> None:
    """Find the first bad line, slowly, and raise RecordError for it."""
    lines = csv.reader(text.decode("utf-8", "replace").splitlines(), quoting=csv.QUOTE_NONE)
    next(lines)
    for number, fields in enumerate(lines, start=2):
        if len(fields) != len(columns):
            raise RecordError(f"{path}:{number}: {len(fields)} fields, expected {len(columns)}")
        for column, field in zip(columns, fields, strict=True):
            if field == "" and column.name not in required:
                continue
            try:
                value = _PARSERS[column.type](field)
                wrong = isinstance(value, float) and not math.isfinite(value)
            except ValueError:
                wrong = True
            if wrong or field == "":
                raise RecordError(
                    f"{path}:{number}: {column.name} is {field!r}, expected a finite "
                    f"{column.type.__name__}"
                )
    raise RecordError(f"{path}: not readable: {seen}")
