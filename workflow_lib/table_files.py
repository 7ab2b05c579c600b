"""Makes, writes and reads tables whose schema is a tuple of
:class:`~workflow_lib.records.columns.Column`."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from workflow_lib.records import bounds
from workflow_lib.records.columns import Column
from workflow_lib.records.reading import RecordError, shown
from workflow_lib.records.whole_files import whole_file

_TYPES: Mapping[type, Any] = {float: pl.Float64, int: pl.Int64, str: pl.String, bool: pl.Boolean}

#: how many threads polars starts when it is imported
_THREADS = "POLARS_MAX_THREADS"

_REMEDY = "remove it, and the same command makes it again"


def schema(columns: Iterable[Column]) -> dict[str, Any]:
    """The polars type of each column, in order."""
    return {column.name: _TYPES[column.type] for column in columns}


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pl.DataFrame:
    """Rows as a frame of exactly ``columns``; what a row lacks is null.

    Raises RecordError if a row has a key that is not a column, or a value of another type.
    """
    if unknown := set().union(*rows) - {column.name for column in columns}:
        raise RecordError(f"a row has {shown(min(unknown))}, which is not a column of its table")
    return pl.DataFrame(
        [_series([row.get(column.name) for row in rows], column) for column in columns]
    )


def _series(values: Sequence[Any], column: Column) -> pl.Series:
    # In Python a bool is an int; an int is accepted as a float.
    fit = {type(None), column.type, int if column.type is float else column.type}
    if not fit.issuperset(map(type, values)):
        value = next(value for value in values if type(value) not in fit)
        raise RecordError(f"{column.name} is {shown(value)}, expected {column.type.__name__}")
    return pl.Series(column.name, values, dtype=_TYPES[column.type])


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a parquet file, whole or not at all; the same frame gives the same bytes.

    Raises OSError if it cannot be written.
    """
    with whole_file(path) as draft:
        try:
            frame.write_parquet(draft, compression="zstd", compression_level=3, statistics=False)
        except pl.exceptions.ComputeError as error:  # so polars says that the disk is full
            raise OSError(f"{path} cannot be written: {error}") from None


def read_table(path: Path, columns: Sequence[Column]) -> pl.DataFrame:
    """Read a parquet file that holds exactly ``columns``.

    Raises FileNotFoundError, or RecordError if it is not parquet, or holds other columns.
    """
    frame = read_frame(path)
    expected = schema(columns)
    if dict(frame.schema) == expected:
        try:
            check_reasons(frame)
        except RecordError as error:
            raise RecordError(f"{path}: {error}; {_REMEDY}") from None
        return frame
    for name in (*expected, *frame.columns):
        stored = frame.schema.get(name)
        if stored != expected.get(name):
            raise RecordError(
                f"{path}: column {name!r} is {stored}, expected {expected.get(name)}; "
                "it was written by another version: make it again"
            )
    return frame.select(expected)


def read_frame(path: Path) -> pl.DataFrame:
    """Read a parquet file, whatever its columns.

    Raises FileNotFoundError, or RecordError if it is not parquet, or has too many rows for its
    size.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such table; an earlier stage makes it: run the sweep first, as in "
            "`snakemake --profile profiles/local results/sweeps/demo/report.html`"
        )
    try:
        lazy = pl.scan_parquet(path, glob=False)  # its name is not a pattern
        rows = lazy.select(pl.len()).collect().item()
        if rows > bounds.TABLE_ROWS_FREE + path.stat().st_size * bounds.TABLE_ROWS.most:
            raise RecordError(f"{path}: {rows} rows, more than a file of its size holds; {_REMEDY}")
        return lazy.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise RecordError(f"{path}: not readable as parquet: {why}; {_REMEDY}") from None


def check_reasons(frame: pl.DataFrame) -> None:
    """Raise RecordError if a value of ``missing_reasons`` or ``missing_codes`` is not a JSON object
    of texts."""
    columns = {"missing_reasons", "missing_codes"} & set(frame.columns)
    texts = [(name, text) for name in columns for text in frame[name].unique().drop_nulls()]
    for name, text in texts:
        try:
            reasons = json.loads(text)
        except (ValueError, RecursionError):
            reasons = None
        if not isinstance(reasons, dict) or not all(
            isinstance(why, str) for why in reasons.values()
        ):
            raise RecordError(f"{name} is {shown(text)}, expected reasons by their column")


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that read and write tables, each with one thread of polars, as they share the
    cores. None is forked: locks of polars' threads would stay held in it."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            yield pool
    finally:
        del os.environ[_THREADS]
        if before is not None:
            os.environ[_THREADS] = before
