"""The interval about a median of few runs."""

import itertools

import pytest

from workflow_lib.analysis.collect import interval


@pytest.mark.parametrize("values", [[3.0], [3.0, 1.0], [2.0, 9.0, 1.0], [4.0, 1.0, 3.0, 2.0]])
def test_below_five_runs_it_is_their_range(values):
    assert interval(values) == (min(values), max(values), "range", None)


@pytest.mark.parametrize(
    ("count", "cut", "coverage"),
    [
        # 1 − 2·1/32: of five no interval reaches 95 %.
        (5, 0, 0.9375),
        (6, 0, 0.96875),
        (8, 0, 0.9921875),  # without one on either side 1 − 2·9/256 = 0.93
        (9, 1, 1 - 2 * 10 / 512),
        (12, 2, 1 - 2 * (1 + 12 + 66) / 4096),
        (20, 5, 1 - 2 * (1 + 20 + 190 + 1140 + 4845 + 15504) / 2**20),
    ],
)
def test_from_five_runs_on_it_is_between_order_statistics(count, cut, coverage):
    values = [float((7 * place) % 23) for place in range(count)]
    ordered = sorted(values)
    found = interval(values)
    assert found[:3] == (ordered[cut], ordered[-1 - cut], "order_statistics")
    assert found.coverage == pytest.approx(coverage, abs=1e-15)


@pytest.mark.parametrize("count", [5, 7, 9, 11])
def test_the_coverage_is_that_of_all_ways_in_which_values_fall_about_the_median(count):
    # Each value is above the median (1) or below (−1) with equal probability.
    held = 0
    for signs in itertools.product((-1.0, 1.0), repeat=count):
        low, high, *_ = interval(signs)
        held += low < 0 < high
    assert interval([0.0] * count).coverage == pytest.approx(held / 2**count)
