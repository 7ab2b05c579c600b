"""The estimate and the interval of a shift."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from workflow_lib.comparison.shift import rank_orders, ratio, shift


def test_hollander_and_wolfes_example():
    # Nonparametric Statistical Methods, table 4.1: permeability of the chorioamnion at term and at
    # 12 to 26 weeks. Published there: the estimate 0.305 and the 96 % interval −0.15 to 0.76.
    term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46]
    weeks = [1.15, 0.88, 0.90, 0.74, 1.21]
    found = shift(term, weeks)
    assert found[:3] == pytest.approx((0.305, -0.15, 0.76))
    assert found.coverage == pytest.approx(0.96, abs=0.0005)


@pytest.mark.parametrize(
    ("m", "n", "largest"),
    # Mann and Whitney's two-sided critical values at 5 %, as tabulated in textbooks.
    [(4, 4, 0), (5, 5, 2), (6, 4, 2), (8, 8, 13), (10, 10, 23), (12, 7, 18), (20, 20, 127)],
)
def test_the_interval_begins_behind_the_tabulated_critical_value(m, n, largest):
    # The differences are 0, 1, …, m·n − 1, so that the k-th lowest is k − 1, and k is one more than
    # the largest U that is significant.
    found = shift([n * i for i in range(m)], [-i for i in range(n)])
    assert (found.low, found.high) == (largest, m * n - 1 - largest)
    assert found.coverage >= 0.95


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (3, 3), (5, 2)])
def test_orders_are_those_that_counting_finds(m, n):
    counts = [0] * (m * n + 1)
    for places in itertools.combinations(range(m + n), m):
        others = [place for place in range(m + n) if place not in places]
        counts[sum(x > y for x in places for y in others)] += 1
    assert rank_orders(m, n) == counts


@pytest.mark.parametrize(
    ("m", "n", "coverage"),
    # 1 − 2 / C(m + n, m), by hand
    [
        (1, 1, 0),
        (2, 2, 1 - 2 / 6),
        (3, 2, 0.8),
        (3, 3, 0.9),
        (4, 3, 1 - 2 / 35),
        (4, 4, 1 - 2 / 70),
    ],
)
def test_few_runs_have_the_coverage_that_there_is(m, n, coverage):
    found = shift(range(m), [10 * i for i in range(n)])
    assert found.coverage == pytest.approx(coverage)
    assert (found.low, found.high) == (-10 * (n - 1), m - 1)


def test_a_ratio_is_the_shift_of_logarithms():
    # Ratios 2, 4, 1, 2: the middle two are 2; the ends are the least and the greatest.
    found = ratio([2.0, 4.0], [1.0, 2.0])
    assert found[:3] == pytest.approx((2.0, 1.0, 4.0))
    with pytest.raises(ValueError, match="domain"):
        ratio([0.0], [1.0])


@pytest.mark.parametrize(("m", "n"), [(3, 3), (5, 5), (6, 3)])
def test_intervals_hold_the_truth_as_often_as_they_say(m, n):
    chance = random.Random(7)
    draws = (
        lambda: chance.gauss(0, 1),
        lambda: chance.expovariate(1),  # neither symmetrical nor normal
    )
    for draw in draws:
        trials, held = 1500, 0
        for _ in range(trials):
            found = shift([draw() + 0.5 for _ in range(m)], [draw() for _ in range(n)])
            held += found.low <= 0.5 <= found.high
        error = 4 * math.sqrt(found.coverage * (1 - found.coverage) / trials)
        assert held / trials == pytest.approx(found.coverage, abs=error)


def test_equal_values_do_not_narrow_it():
    assert shift([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])[:3] == (0.0, 0.0, 0.0)
    found = shift([1.0, 1.0, 2.0], [1.0, 0.0, 1.0])
    assert (found.low, found.high) == (0.0, 2.0)
