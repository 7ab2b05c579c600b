"""Errors, coverage and order of predictions, worked out by hand."""

import pytest

from research.projection.metrics import (
    Coverage,
    Errors,
    Quantity,
    confusion,
    kendall_tau,
    ranking,
    regret,
)
from workflow_lib.projection.kinds import Widths


def test_errors():
    assert Errors.of([0.1, -0.3, 0.02]) == Errors(3, pytest.approx(0.14), 0.3, 0.02)
    with pytest.raises(ValueError, match="no errors"):
        Errors.of([])


def test_coverage_counts_what_lies_within():
    # With a standard deviation of 1, e^0.2 = 1.2214 and e^−0.1 = 0.9048.
    widths = Widths("own", {0.9: (-0.1, 0.2)}, rows=33, groups=20)
    found = Coverage.of([Quantity(x, 10.0, 1.0, widths) for x in (12.0, 13.0, 9.1)], 0.9)
    assert found.covered == pytest.approx(2 / 3)
    assert found.width == pytest.approx(1.2214 - 0.9048, abs=1e-4)


def test_order():
    assert kendall_tau([1, 2, 3], [10, 20, 30]) == 1
    assert kendall_tau([3, 2, 1], [10, 20, 30]) == -1
    # Of three pairs two agree and one does not.
    assert kendall_tau([1, 3, 2], [10, 20, 30]) == pytest.approx(1 / 3)
    assert kendall_tau([1, 1], [10, 20]) is None


def test_regret_is_what_the_choice_costs():
    assert regret([1, 2, 3], [12, 10, 11]) == pytest.approx(0.2)
    assert regret([2, 1, 3], [12, 10, 11]) == 0


def test_ranking_is_over_groups():
    found = ranking([([1, 2], [12, 10]), ([1, 2], [10, 12])])
    assert list(found.values()) == [2, 0.0, pytest.approx(0.1), pytest.approx(0.2)]
    assert ranking([]) is None


def test_confusion():
    verdicts = [("yes", True), ("yes", True), ("yes", False), ("perhaps", True), ("no", False)]
    assert list(confusion(verdicts).values()) == [2, 1, 1, 0, 0, 1]
