"""How tables are taken apart."""

import polars as pl
import pytest

from workflow_lib.report.figures.tables import by_cell


@pytest.mark.parametrize("cells", ["aabbbc", "abcabb", "c"])
def test_the_rows_of_each_cell_keep_their_order_wherever_they_lie(cells):
    frame = pl.DataFrame({"cell": list(cells), "place": range(len(cells))})
    expected = {
        cell: [place for place, each in enumerate(cells) if each == cell] for cell in set(cells)
    }
    found = by_cell(frame)
    assert {cell: rows["place"].to_list() for cell, rows in found.items()} == expected
    assert {cell: set(rows["cell"]) for cell, rows in found.items()} == {c: {c} for c in expected}


def test_a_table_without_rows_or_that_is_not_there_has_no_cells():
    assert by_cell(None) == {}
    assert by_cell(pl.DataFrame(schema={"cell": pl.String})) == {}
