"""Tables are written whole or not at all."""

import resource

import polars as pl
import pytest

from workflow_lib.table_files import write_table


def test_a_table_that_does_not_fit_on_the_disk_is_named_and_leaves_nothing(tmp_path):
    frame = pl.DataFrame({"number": pl.Series(range(100_000)).shuffle(seed=1)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Of a full disk polars says the same, with another reason.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"runs\.parquet .*File too large"):
            write_table(frame, tmp_path / "runs.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
