"""Reduce against the same computation in pandas, on made-up runs of a whole study's kind."""

import pytest

from workflow_lib.analysis.collect import collect
from workflow_lib.analysis.reduce import reduce_runs
from workflow_lib.records.tables import CELLS
from workflow_lib.table_files import read_table

pytest.importorskip("pandas")
from benchmarks import full_matrix
from benchmarks.measuring import matrix


@pytest.mark.long
def test_reduce_and_pandas_agree_on_a_cell_of_64_gpus(tmp_path):
    runs = matrix.write_matrix(tmp_path, 1)
    assert len(runs) == matrix.REPEATS
    assert reduce_runs(runs, processes=1) == []
    assert full_matrix.differences(runs[0]) == []
    collect(tmp_path / "plan.parquet", tmp_path, tmp_path)
    cells = read_table(tmp_path / "cells.parquet", CELLS)
    done = cells.filter(cells["outcome"] == "completed")
    assert done.select("cell", "completed", "interval").rows() == [
        (f"{runs[0].parent.relative_to(tmp_path / 'cells')}", matrix.REPEATS, "range")
    ]
