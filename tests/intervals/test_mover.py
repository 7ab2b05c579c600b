"""The interval of a difference of two estimates, by hand and in simulated pairs of cells."""

import numpy as np
import pytest

from workflow_lib.intervals.differences import Interval, apart, in_blocks, of_estimates

from .test_differences import NOISE

#: the least coverage: the stated one, less what the number of trials may hide
LEAST = 0.94


def test_each_end_is_made_of_the_distances_that_bear_on_it():
    found = of_estimates(Interval(10.0, 7.0, 22.0), Interval(4.0, -1.0, 8.0))
    # Below: 3 of the first and 4 of the second. Above: 12 of the first and 5 of the second.
    assert found == Interval(6.0, 6.0 - 5.0, 6.0 + 13.0)


def test_an_estimate_without_an_error_leaves_the_interval_of_the_other():
    sure = Interval(4.0, 4.0, 4.0)
    assert of_estimates(Interval(10.0, 7.0, 22.0), sure) == Interval(6.0, 3.0, 18.0)
    assert of_estimates(sure, Interval(10.0, 7.0, 22.0)) == Interval(-6.0, -18.0, -3.0)


def blocks(chance, count, spread, effect):
    """The interval of two cells in blocks: Student's t with one degree of freedom less than there
    are blocks. ``spread`` is that of the first cell's runs, in :data:`NOISE`."""
    a = effect + chance.normal(0, spread * NOISE, count)
    return in_blocks(a, chance.normal(0, NOISE, count))


def sides(chance, count, spread, effect):
    """The interval of two cells whose runs lie apart: it holds Welch's."""
    a = effect + chance.normal(0, spread * NOISE, count)
    b = chance.normal(0, NOISE, count)
    return apart(a, b, range(count), range(count, 2 * count))


def coverage(one, other, trials, seed=16):
    """How often the interval holds the true difference of two pairs; each is how its interval is
    made, the number of its runs a side, and the spread of its first cell's runs."""
    chance, held = np.random.default_rng(seed), 0
    true = 0.05, -0.02
    for _ in range(trials):
        found = [
            make(chance, count, spread, effect)
            for (make, count, spread), effect in zip((one, other), true, strict=True)
        ]
        ends = of_estimates(*found)
        held += ends.low <= true[0] - true[1] <= ends.high
    return held / trials


#: Student intervals with 2 to 4 degrees of freedom, of equal and of unequal spreads
PAIRS = {
    "2 and 2 degrees": ((blocks, 3, 1), (blocks, 3, 1)),
    "2 and 4 degrees": ((blocks, 3, 1), (blocks, 5, 1)),
    "4 and 2 degrees, 4 times the spread": ((blocks, 5, 4), (blocks, 3, 1)),
    "2 and 4 degrees, 10 times the spread": ((blocks, 3, 10), (blocks, 5, 1)),
    "3 and 3 degrees, a quarter of the spread": ((blocks, 4, 1), (blocks, 4, 4)),
    "4 and 4 degrees, 100 times the spread": ((blocks, 5, 100), (blocks, 5, 1)),
    "in blocks and apart": ((blocks, 3, 1), (sides, 3, 1)),
    "in blocks and apart, 4 times the spread": ((blocks, 3, 1), (sides, 4, 4)),
}


@pytest.mark.parametrize("pairs", PAIRS)
def test_the_interval_holds_the_truth_as_often_as_stated(pairs):
    assert coverage(*PAIRS[pairs], trials=4000) >= LEAST


@pytest.mark.long
@pytest.mark.parametrize("pairs", PAIRS)
def test_stated_coverage_holds_in_many_trials(pairs):
    assert coverage(*PAIRS[pairs], trials=40_000) >= 0.947


def test_the_interval_is_not_wide_beyond_need():
    """With many runs it is the normal interval of the difference of both."""
    one, other = Interval(0.0, -1.96, 1.96), Interval(0.0, -1.96 * 2, 1.96 * 2)
    assert of_estimates(one, other).high == pytest.approx(1.96 * 5**0.5)
