"""Student's t against printed tables."""

import pytest

from workflow_lib.intervals import students_t


@pytest.mark.parametrize(
    ("degrees_of_freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (19, 2.093), (120, 1.980)],
)
def test_it_is_that_of_the_printed_tables(degrees_of_freedom, expected):
    assert students_t.quantile(degrees_of_freedom) == pytest.approx(expected, abs=5e-4)


def test_degrees_of_freedom_need_not_be_whole():
    # scipy.stats.t.ppf(0.975, 2.5) and (0.9975, 7.3)
    assert students_t.quantile(2.5) == pytest.approx(3.57465, abs=1e-4)
    assert students_t.quantile(7.3, 0.9975) == pytest.approx(3.96293, abs=1e-4)


@pytest.mark.parametrize(("degrees", "share"), [(0.5, 0.975), (3, 0.4), (3, 1.0)])
def test_other_arguments_are_refused(degrees, share):
    with pytest.raises(ValueError, match="no t of"):
        students_t.quantile(degrees, share)
