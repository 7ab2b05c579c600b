"""The tables from which figures and the page are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.tables import TABLES
from workflow_lib.report.figures.cell_names import Row
from workflow_lib.table_files import read_table


@dataclass(frozen=True)
class Tables:
    """A sweep's tables. Those that grow with time or kernels are frames, None if the file is
    missing."""

    cells: tuple[Row, ...]
    runs: tuple[Row, ...]
    gpus: tuple[Row, ...]
    #: rows of STEP_TIMES
    steps: pl.DataFrame | None = None
    series: pl.DataFrame | None = None
    kernels: pl.DataFrame | None = None
    traces: pl.DataFrame | None = None


def read_tables(directory: Path) -> Tables:
    """Read every table that figures need.

    Raises FileNotFoundError without ``cells``, ``runs`` or ``gpus.parquet``; the others may be
    missing. Raises RecordError if one is damaged or was written by another version.
    """
    paths = SweepPaths(directory)
    return Tables(
        tuple(_read(paths, "cells").to_dicts()),
        tuple(_read(paths, "runs").to_dicts()),
        tuple(_read(paths, "gpus").to_dicts()),
        *(
            _read(paths, name) if paths.table(name).exists() else None
            for name in ("steps", "series", "kernels", "traces")
        ),
    )


def _read(paths: SweepPaths, name: str) -> pl.DataFrame:
    return read_table(paths.table(name), TABLES[name].columns)


def by_cell(frame: pl.DataFrame | None) -> dict[str, pl.DataFrame]:
    """Cell → its rows, in the order of ``frame``; empty if there is no frame.

    In a table that collect wrote, the rows of a cell are contiguous. Then they are slices of the
    frame, and nothing is copied, which may be hundreds of MB.
    """
    if frame is None:
        return {}
    runs = frame["cell"].rle().struct.unnest()
    if runs["value"].is_duplicated().any():
        parts = frame.partition_by("cell", as_dict=True, maintain_order=True)
        return {str(cell): part for (cell,), part in parts.items()}
    begins = runs["len"].cum_sum() - runs["len"]
    return {
        cell: frame.slice(begin, length)
        for cell, begin, length in zip(runs["value"], begins, runs["len"], strict=True)
    }
