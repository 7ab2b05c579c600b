"""Errors, coverage and order of predictions, worked out by hand."""

from __future__ import annotations

import pytest

from research.projection.metrics import Confusion, Coverage, Errors, Ranking, kendall_tau, regret


def test_errors():
    assert Errors.of([0.1, -0.3, 0.02]) == Errors(3, pytest.approx(0.14), 0.3, 0.02)
    with pytest.raises(ValueError, match="no errors"):
        Errors.of([])


def test_coverage_counts_what_lies_within():
    found = Coverage.of([(9, 10, 12), (9, 10, 12), (1, 2, 3)], [11, 13, 3])
    assert found.covered == pytest.approx(2 / 3)
    assert found.width == pytest.approx((0.3 + 0.3 + 1.0) / 3)


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
    found = Ranking.of([([1, 2], [12, 10]), ([1, 2], [10, 12])])
    assert found == Ranking(2, 0.0, pytest.approx(0.1), pytest.approx(0.2))
    assert Ranking.of([]) is None


def test_confusion():
    verdicts = [("yes", True), ("yes", True), ("yes", False), ("perhaps", True), ("no", False)]
    assert Confusion.of(verdicts) == Confusion(2, 1, 1, 0, 0, 1)
