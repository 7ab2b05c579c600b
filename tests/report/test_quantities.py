"""Numbers as people read them."""

import pytest

from workflow_lib.records.measures import MEASURES
from workflow_lib.report.figures.cell_names import natural
from workflow_lib.report.figures.numbers import NOTHING, shown, significant
from workflow_lib.words import counted


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
        (-3.14159, "−3.14"),
    ],
)
def test_three_digits_and_all_whole_ones(value, text):
    assert significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.71e-10, "0.00"), (-0.0049, "0.00"), (-0.0051, "−0.01"), (0.0, "0"), (99.5, "99.5")],
)
def test_what_is_less_than_the_decimals_allowed_is_zero(value, text):
    assert significant(value, decimals=2) == text


def test_a_thing_alone_has_no_plural():
    assert [counted(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


def test_a_range_is_shown_where_there_are_several_runs():
    measure = MEASURES["mfu_6n"]
    cell = {"mfu_6n": 0.5, "mfu_6n_low": 0.4, "mfu_6n_high": 0.6, "completed": 3}
    assert shown(cell, measure) == ("50.0", "40.0–60.0", 50.0)
    assert shown({**cell, "completed": 1}, measure) == ("50.0", "", 50.0)
    assert shown({**cell, "mfu_6n": None}, measure) == (NOTHING, "", None)
    below = {"mfu_6n": -0.1, "mfu_6n_low": -0.2, "mfu_6n_high": 1e-9, "completed": 2}
    assert shown(below, measure) == ("−10.0", "−20.0 to 0.00", -10.0)


def test_numbers_in_names_are_ordered_as_numbers_even_longer_than_python_reads():
    long = "9" * 5000
    mixed = [f"tp1{long}", "tp16-pp2", f"tp{long}", "tp2-pp16", "tp2-pp2"]
    in_order = ["tp2-pp2", "tp2-pp16", "tp16-pp2", f"tp{long}", f"tp1{long}"]
    assert sorted(mixed, key=natural) == in_order
