"""Parquet files of others are tried in another process, which may end in any way."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from workflow_lib.analysis import parquet_check
from workflow_lib.analysis.parquet_check import check_readable
from workflow_lib.comparison.__main__ import main
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError
from workflow_lib.table_files import write_table


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(pl.DataFrame({"cell": ["a"], "run": [1]}), tmp_path / "a table.parquet")
    return tmp_path / "a table.parquet"


def test_what_can_be_read_passes_wherever_one_is(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_readable([Path(table.name), tmp_path / "not there.parquet"])


def test_what_is_no_parquet_is_named_with_why(table, tmp_path):
    other = tmp_path / "other.parquet"
    other.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(RecordError, match=rf"^{other}: .*parquet"):
        check_readable([table, other])


def test_a_file_that_ends_who_reads_it_is_refused_in_a_sentence(table, tmp_path, monkeypatch):
    # Stands for polars, which aborts: the child begins the second file, and dies.
    child = tmp_path / "python"
    child.write_text("#!/bin/sh\necho '0 '; printf '1 '; kill -ABRT $$\n")
    child.chmod(0o755)
    monkeypatch.setattr(parquet_check.sys, "executable", str(child))
    other = tmp_path / "other.parquet"
    other.write_bytes(table.read_bytes())
    with pytest.raises(RecordError, match=rf"^{other}: .*memory"):
        check_readable([table, other])


def test_memory_is_bounded(table, monkeypatch):
    # Not even polars itself fits.
    monkeypatch.setattr(bounds, "PARQUET_CHECK_BYTES", bounds.Bound(1 << 26, "B", ""))
    with pytest.raises(RecordError, match=rf"^{table}: .*memory"):
        check_readable([table])


def test_a_comparison_reads_nothing_before_it_was_tried(tmp_path, monkeypatch, capsys):
    for side in "ab":
        (tmp_path / side).mkdir()
        for name in ("cells", "runs", "gpus"):
            (tmp_path / side / f"{name}.parquet").write_bytes(os.urandom(64))
    monkeypatch.setattr("workflow_lib.comparison.sides.read_table", None)
    sides = [str(tmp_path / side) for side in "ab"]
    assert main([*sides, "--output", str(tmp_path / "c")]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"comparison: {tmp_path}/a/cells.parquet: ")
