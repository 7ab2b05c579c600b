"""Numbers as people read them."""

from __future__ import annotations

import pytest

from workflow_lib.records import CELLS
from workflow_lib.report.cells import labels, natural
from workflow_lib.report.quantities import NOTHING, SHOWN, Quantity, shown, significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12345.6, "12,346"),
        (999.6, "1,000"),
        (99.96, "100"),
        (9.996, "10.0"),
        (1.0, "1.00"),
        (0.01234, "0.0123"),
        (-3.14159, "-3.14"),
    ],
)
def test_three_digits_and_all_whole_ones(value: float, text: str) -> None:
    assert significant(value) == text


def test_a_range_is_shown_where_there_are_several_runs() -> None:
    quantity = Quantity("mfu_6n", "MFU", "%", 100.0)
    cell = {"mfu_6n": 0.5, "mfu_6n_low": 0.4, "mfu_6n_high": 0.6, "completed": 3}
    assert shown(cell, quantity) == ("50.0", "40.0–60.0", 50.0)
    assert shown({**cell, "completed": 1}, quantity) == ("50.0", "", 50.0)
    assert shown({**cell, "mfu_6n": None}, quantity) == (NOTHING, "", None)


def test_every_quantity_shown_is_a_column() -> None:
    assert {quantity.measure for quantity in SHOWN} <= {column.name for column in CELLS}


def test_numbers_in_names_are_ordered_as_numbers() -> None:
    assert sorted(["tp16-pp2", "tp2-pp16", "tp2-pp2"], key=natural) == [
        "tp2-pp2",
        "tp2-pp16",
        "tp16-pp2",
    ]


def test_cells_alike_in_all_but_their_digest_are_told_apart_by_it() -> None:
    cell = {"platform": "p", "model": "m", "parallelism": "tp1", "options": "mb1"}
    cells = [{**cell, "cell": f"p/m/tp1_mb1_{digest}"} for digest in ("aaaaaaaa", "bbbbbbbb")]
    assert labels(cells) == ["tp1 aaaaaa", "tp1 bbbbbb"]
