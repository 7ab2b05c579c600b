"""Reads the CSV files of telemetry and training, and reports the first line that is wrong.

If the last line of a file has no line end, it was cut off while being written, and is dropped. Any
other line that does not fit its columns is an error, because it shows damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np
import polars as pl

from workflow_lib.records import bounds, ranges
from workflow_lib.records.columns import Column
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError, read_bytes, read_header, read_row, shown
from workflow_lib.records.whole_files import error_text
from workflow_lib.table_files import schema


@contextmanager
def of_run(paths: RunPaths) -> Iterator[None]:
    """Add advice to a RecordError that is raised inside; only raw files of the run may be read
    there."""
    try:
        yield
    except RecordError as error:
        error.add_note(
            "what was recorded cannot be made again: copy the file back from a backup or an "
            f"archive, or remove {paths.directory}, and the same command trains this run again"
        )
        raise


def in_full(error: Exception) -> str:
    """An error's message with its notes, joined by semicolons."""
    return "; ".join([error_text(error), *getattr(error, "__notes__", ())])


#: what polars leaves out, and nobody writes: fields of blanks, and carriage returns within a line
_LEFT_OUT = re.compile(rb"[,\n][ \t]+,|,[ \t]+\r?\n|\r(?!\n)")


def read_rows(path: Path, columns: Sequence[Column], required: Sequence[str]) -> pl.DataFrame:
    """Read a CSV file of exactly ``columns``; an empty field is null.

    A column that a later version added may be missing from the file; then it is null throughout.

    ``required`` names the columns that may not be empty. Raises FileNotFoundError, or RecordError
    with the file, the line and the column that are wrong.
    """
    return read_files([path], columns, required).drop("file")


def read_files(
    paths: Sequence[Path], columns: Sequence[Column], required: Sequence[str]
) -> pl.DataFrame:
    """Read CSV files of the same ``columns`` at once, one below the other, as :func:`read_rows`.

    The last column, ``file``, is the index in ``paths`` of a row's file. A run has one file for
    each rank and several for each node, and polars takes longer to start on a file than to read it.
    """
    there, bodies = _bodies(paths, columns)
    counts = [_lines(body) for body in bodies]
    files = np.repeat(np.arange(len(paths)), counts)
    if not files.size:
        return pl.DataFrame(schema=schema(columns)).with_columns(file=pl.Series(files))
    names = [column.name for column in there]
    header = ",".join(names).encode() + b"\n"
    text = b"".join([header, *bodies])
    # Drop the files' own bytes, which may be hundreds of megabytes.
    ends = np.cumsum([len(header), *map(len, bodies)]).tolist()
    bodies = [memoryview(text)[start:end] for start, end in pairwise(ends)]
    try:
        frame = pl.read_csv(text, schema=schema(there), quote_char=None).rechunk()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        _raise_for_bad_file(paths, bodies, there, required, str(error).splitlines()[0])
    # Hardly any file has one of these bytes, and to look for a byte takes no time.
    if any(byte in text for byte in (b" ", b"\t", b"\r")) and _LEFT_OUT.search(text):
        for path, body in zip(paths, bodies, strict=True):
            _check_lines(path, body, there, required)
    floats = [column.name for column in there if column.type is float]
    finite = frame.select(pl.col(floats).is_finite().all()).row(0) if floats else ()
    if (
        frame.height != files.size
        or not all(finite)
        or any(frame[name].null_count() for name in required)
        or not _in_range(frame, there)
    ):
        _raise_for_bad_file(paths, bodies, there, required, "a value is missing or impossible")
    # polars refuses a line with too many fields, but silently fills one with too few with nulls.
    # Then the last column has a null, and there are fewer commas than there should be.
    if frame[names[-1]].null_count():
        for path, body, count in zip(paths, bodies, counts, strict=True):
            if bytes(body).count(b",") != (len(names) - 1) * count:
                seen = "the number of fields differs"
                _raise_for_bad_file([path], [body], there, required, seen)
    empty = [pl.lit(None, kind).alias(name) for name, kind in schema(columns).items()]
    lacking = [expression for expression in empty if expression.meta.output_name() not in names]
    whole = frame.with_columns(lacking).select(list(schema(columns))) if lacking else frame
    return whole.with_columns(file=pl.Series(files))


def _bodies(
    paths: Sequence[Path], columns: Sequence[Column]
) -> tuple[Sequence[Column], list[memoryview]]:
    """The columns that the files have, and each file's lines below its header."""
    there: Sequence[Column] = columns
    bodies = []
    for place, path in enumerate(paths):
        header, body = _parted(path)
        present = read_header(header, columns)
        if present is None or (place and present != there):
            expected, seen = (
                ",".join(c.name for c in there),
                shown(header.decode("utf-8", "replace")),
            )
            raise RecordError(f"{path}:1: the header is {seen}, expected {expected!r}")
        there = present
        bodies.append(body)
    return there, bodies


def _parted(path: Path) -> tuple[bytes, memoryview]:
    """A file's header, and its lines below that, without a torn last one."""
    text = read_bytes(path, bounds.CSV_BYTES)
    size = text.rfind(b"\n") + 1
    if not size:
        raise RecordError(f"{path}:1: empty, expected a header; its writer ended before writing it")
    end = text.index(b"\n")
    return text[:end], memoryview(text)[end + 1 : size]


def _in_range(frame: pl.DataFrame, columns: Sequence[Column]) -> bool:
    """Whether all numbers are in the ranges of their columns."""
    numbers = [column for column in columns if column.type is not str]
    names = [column.name for column in numbers]
    return not any(
        ranges.problem(column.name, value, column.range)
        for ends in (frame.select(pl.col(names).min()), frame.select(pl.col(names).max()))
        for column, value in zip(numbers, ends.row(0), strict=True)
    )


def _lines(body: memoryview) -> int:
    """The number of lines; five times as fast as ``bytes.count``."""
    return int(np.count_nonzero(np.frombuffer(body, dtype=np.uint8) == ord("\n")))


def _raise_for_bad_file(
    paths: Sequence[Path],
    bodies: Sequence[memoryview],
    columns: Sequence[Column],
    required: Sequence[str],
    seen: str,
) -> NoReturn:
    """Find the first bad line of several files, slowly, and raise RecordError for it."""
    for path, body in zip(paths, bodies, strict=True):
        _check_lines(path, body, columns, required)
    raise RecordError(f"{paths[0]}: not readable: {seen}")


def _check_lines(
    path: Path, body: memoryview, columns: Sequence[Column], required: Sequence[str]
) -> None:
    for number, line in enumerate(bytes(body).split(b"\n")[:-1], start=2):
        try:
            read_row(line, columns, columns, required)
        except ValueError as error:
            raise RecordError(f"{path}:{number}: {error}") from None
