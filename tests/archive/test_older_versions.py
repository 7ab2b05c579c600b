"""What older versions wrote is read, and gives the values that they gave."""

from __future__ import annotations

import io
import zipfile
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_series_equal

from tests.archive.sweeps import NAME
from tests.conftest import ROOT
from workflow_lib.archive import pack as packing
from workflow_lib.archive.bag import ArchiveError
from workflow_lib.archive.rebuild import Rebuilt, rebuild
from workflow_lib.records.cell import Cell
from workflow_lib.records.cell_axes import CELL_FORMAT
from workflow_lib.records.files import ARCHIVE_FORMAT, read_record
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import write_json

#: the demo as version 0.1 ran and packed it, on a CPU with simulated GPUs
ARCHIVE = Path(__file__).parent / "data" / "demo-0.1.zip"
#: columns that mean something else now, and those that name other columns
CHANGED = {
    *("measured_steps", "missing_reasons"),
    # It was over the sampler's whole life, and is of the measured steps now.
    *("sampler_cpu_share", "sampler_cpu_share_low", "sampler_cpu_share_high"),
    # Steadiness is another test now; drifts are of a least-squares line.
    *(
        name + suffix
        for name in ("steady", "step_time_drift", "power_drift", "temperature_drift_c")
        for suffix in ("", "_low", "_high")
    ),
}


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rebuilt, SweepPaths]:
    into = tmp_path_factory.mktemp("older") / "rebuilt"
    done = rebuild(ARCHIVE, into, ROOT, 1e9)
    return done, SweepPaths(into / "results" / "sweeps" / "demo")


def then(table: str) -> pl.DataFrame:
    with zipfile.ZipFile(ARCHIVE) as archive:
        name = f"demo-0.1/data/results/sweeps/demo/{table}.parquet"
        return pl.read_parquet(io.BytesIO(archive.read(name)))


@pytest.mark.long
@pytest.mark.parametrize("table", ["runs", "cells", "gpus", "steps", "series"])
def test_an_archive_of_version_0_1_gives_the_values_that_it_holds(rebuilt, table):
    before, now = then(table), pl.read_parquet(rebuilt[1].table(table))
    names = [name for name in before.columns if name in now.columns and name not in CHANGED]
    assert len(names) >= 0.9 * (len(before.columns) - len(CHANGED))
    assert len(before) == len(now) > 0
    keys = [name for name in ("cell", "run", "node", "rank", "gpu") if name in names]
    for name in names:
        # Sums are made in another order now.
        assert_series_equal(
            before.sort(keys)[name], now.sort(keys)[name], rel_tol=1e-12, abs_tol=1e-12
        )


@pytest.mark.long
def test_nothing_of_the_archive_is_left_out(rebuilt):
    done, paths = rebuilt
    # A figure of a single cell compares nothing, so that it is no longer drawn.
    alone = [f"energy-mixtral-tiny.{kind}" for kind in ("pdf", "svg")]
    figures = paths.figures.relative_to(paths.directory.parents[2])
    assert sorted(done.missing) == [str(figures / name) for name in alone]
    assert paths.report.is_file()


def test_a_record_of_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "cell.json"
    for other, named in ((CELL_FORMAT + 1, f"format {CELL_FORMAT + 1} by"), ("two", "'two'")):
        write_json(path, {"format": other, "new": "unknown"})
        with pytest.raises(RecordError, match=rf"cell\.json: .*{named}"):
            read_record(path, Cell)


def test_an_archive_of_a_newer_version_is_refused(study, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "ARCHIVE_FORMAT", ARCHIVE_FORMAT + 1)
    newer = tmp_path / "newer.zip"
    day = date(2026, 1, 31)
    packing.pack(NAME, newer, study.config, study.results, ROOT, published=day)
    with pytest.raises(ArchiveError, match=f"format {ARCHIVE_FORMAT + 1} by"):
        rebuild(newer, tmp_path / "into", ROOT, 1e9)
