"""A column that a file was given later is null in files that lack it; any other must be there."""

import pytest

from workflow_lib.analysis.samples import read_rows
from workflow_lib.records.columns import Column
from workflow_lib.records.reading import RecordError, read_csv

COLUMNS = (
    Column("at_s", float, "s", ""),
    Column("fan", int, "%", "", later=True),
    Column("cost_s", float, "s", ""),
)


@pytest.mark.parametrize(
    ("text", "fan"), [("at_s,cost_s\n1.5,0.25\n", None), ("at_s,fan,cost_s\n1.5,7,0.25\n", 7)]
)
def test_a_file_is_read_with_it_and_without_it(tmp_path, text, fan):
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    expected = {"at_s": 1.5, "fan": fan, "cost_s": 0.25}
    assert read_rows(path, COLUMNS, ("at_s",)).to_dicts() == [expected]
    assert list(read_csv(path, COLUMNS)) == [(2, expected)]


@pytest.mark.parametrize("header", ["at_s,fan", "at_s,cost_s,fan", "at_s,new,cost_s"])
def test_any_other_header_is_refused(tmp_path, header):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n", encoding="utf-8")
    with pytest.raises(RecordError, match="the header is"):
        read_rows(path, COLUMNS, ("at_s",))
    with pytest.raises(RecordError, match="line 1"):
        list(read_csv(path, COLUMNS))
