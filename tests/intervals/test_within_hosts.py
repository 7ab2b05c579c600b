"""Intervals within sessions, in simulated campaigns whose truth is known, and by hand."""

import numpy as np
import pytest

from workflow_lib.intervals.differences import apart, in_blocks
from workflow_lib.intervals.within_hosts import Sessions, drift, is_estimable, within_hosts

from .test_differences import NOISE, SCENES, STATED, WITHIN

#: by how much hosts differ, one standard deviation
HOSTS = 0.05
#: the runs of each session, in the order of their times
ORDERS = {
    "unbalanced": ("aab", "bba"),
    "two and one": ("bbaa", "ab"),
    "one of each": ("ab", "ba", "ab"),
    "four sessions": ("ab", "ba", "abb", "baa"),
    "one side first": ("aab", "abb"),
    "more of B": ("abbb", "bbab", "babb"),
    "ten of each": ("ababababab", "babababa", "ab"),
}


def lying(orders):
    """The sessions of runs in these orders."""
    places = {
        side: [(s, p) for s, order in enumerate(orders) for p, of in enumerate(order) if of == side]
        for side in "ab"
    }
    of, at = ([tuple(run[part] for run in places[side]) for side in "ab"] for part in (0, 1))
    return Sessions(*of, *at)


def rate(scene, orders, trials):
    """How often two equal cells are told apart, with effects of hosts and what the scene adds."""
    drifts, _, spread = SCENES[scene]
    chance, false, lie = np.random.default_rng(14), 0, lying(orders)
    for _ in range(trials):
        host = chance.normal(0, HOSTS, len(orders))
        a, b = (
            host[list(of)] + drifts * np.array(places) + chance.normal(0, noise, len(of))
            for of, places, noise in (
                (lie.of_a, lie.places_a, spread * NOISE),
                (lie.of_b, lie.places_b, NOISE),
            )
        )
        found = within_hosts(a, b, lie)
        false += not found.low <= 0 <= found.high
    return false / trials


@pytest.mark.parametrize("scene", ["no effect", "drift", "unequal spread", "all of them"])
@pytest.mark.parametrize("orders", ORDERS)
def test_equal_cells_are_told_apart_as_rarely_as_stated(scene, orders):
    assert rate(scene, ORDERS[orders], trials=1000) <= STATED + WITHIN


@pytest.mark.long
@pytest.mark.parametrize("scene", ["no effect", "drift", "unequal spread", "all of them"])
@pytest.mark.parametrize("orders", ORDERS)
def test_stated_rates_hold_in_many_trials(scene, orders):
    assert rate(scene, ORDERS[orders], trials=10_000) <= STATED + WITHIN / 2


def test_the_interval_is_that_of_least_squares():
    """Sessions of a, a, b and b, b, a; on the second host all is 10 more, and A is 3 more."""
    lie = lying(("aab", "bba"))
    found = within_hosts([4.0, 4.0, 14.0], [1.0, 10.0, 12.0], lie)
    # Within sessions, A less its mean is 1/3, 1/3, −2/3 and −1/3, −1/3, 2/3 (squares 4/3), values
    # less theirs 1, 1, −2 and −2, 0, 2. So the side's effect is (1/3 + 1/3 + 4/3 + 2/3 + 4/3)/(4/3)
    # = 3, and residuals are 0, 0, 0 and −1, 1, 0. The spread is 2/3, with 6 − 2 − 1 degrees of
    # freedom, for which t is 3.1824: 3.1824·√(2/3 / (4/3)) = 2.2503.
    assert found.estimate == pytest.approx(3.0)
    # Places less their means are −1, 0, 1 in both. With A they make −1 and 1: A and the drift do
    # not hang together. The drift is (−3 + 4)/4 = 1/4, which leaves squares of 2 − 1/4, so a spread
    # of 7/8 with 2 degrees of freedom, for which t is 4.3027: 4.3027·√(7/8 / (4/3)) = 3.4855.
    assert (found.low, found.high) == pytest.approx((3 - 3.4855, 3 + 3.4855), abs=1e-3)
    slope = drift([4.0, 4.0, 14.0], [1.0, 10.0, 12.0], lie)
    assert slope.estimate == pytest.approx(0.25)
    assert slope.high - slope.low == pytest.approx(2 * 4.3027 * (7 / 8 / 4) ** 0.5, abs=1e-3)


def test_with_one_run_of_each_side_in_a_session_it_holds_that_of_paired_differences():
    a, b = [11.0, 22.0, 33.5], [10.0, 20.0, 30.0]
    paired = in_blocks(a, b)
    found = within_hosts(a, b, lying(("ab", "ba", "ab")))
    assert found.estimate == pytest.approx(paired.estimate)
    assert found.low <= paired.low
    assert found.high >= paired.high


def test_with_unequal_numbers_each_side_has_its_spread():
    """The interval of sessions of one run of A and three of B hangs on A's own few runs."""
    lie = lying(("abbb", "bbab", "babb"))
    quiet, loud = [0.0, 0.01, -0.01] * 3, [0.0, 4.0, -4.0]
    found = within_hosts(loud, quiet, lie)
    # A's runs alone: a spread of 4 and t of 4.3 for 2 degrees of freedom give 4.3·4/√3 = 9.9.
    assert found.high - found.low > 2 * 9.9


def test_a_difference_that_hosts_alone_make_is_none():
    # The second host is 2 % faster. It has five of A's six runs, and one of B's six.
    lie = lying(("abbbbb", "aaabaa"))
    noise = [0.02, -0.02, 0.03, -0.03, 0.01, -0.01]
    a = np.array([100.0] + [102.0] * 5) + noise
    b = np.array([100.0] * 5 + [102.0]) + noise[::-1]
    found = within_hosts(a, b, lie)
    assert found.low <= 0 <= found.high
    assert found.high - found.low < 0.2
    # Apart, it would be a difference of 1.3 of A and B.
    assert apart(a, b, range(6), range(6, 12)).estimate == pytest.approx(4 / 3, abs=0.02)


def test_equal_values_of_each_host_have_no_spread_not_even_by_rounding():
    found = within_hosts([0.1, 0.3, 0.3], [0.1, 0.1, 0.3], lying(("abb", "aba")))
    assert (found.estimate, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_drift_is_found_and_taken_away():
    # 2 a place, a host of 100, and A lies 5 above B.
    lie = lying(("aab", "bba"))
    a, b = [5.0, 7.0, 109.0], [4.0, 100.0, 102.0]
    slope = drift(a, b, lie)
    assert (slope.estimate, slope.low, slope.high) == pytest.approx((2.0, 2.0, 2.0))
    found = within_hosts(a, b, lie)
    assert found.low <= 5 <= found.high


def test_if_one_side_comes_first_in_every_session_the_interval_is_wide():
    chance = np.random.default_rng(15)

    def width(orders):
        lie, total = lying(orders), 0.0
        for _ in range(300):
            found = within_hosts(chance.normal(0, 1, 3), chance.normal(0, 1, 3), lie)
            total += found.high - found.low
        return total / 300

    # The drift takes three quarters of what tells the sides: 1/√(1 − 0.75) = 2.
    assert width(("aab", "abb")) > 1.7 * width(("aab", "bba"))


def test_runs_that_cannot_tell_a_drift_from_a_side_are_refused():
    assert not is_estimable(lying(("ab", "ab", "ab")))
    assert is_estimable(lying(("ab", "ba", "ab")))
    with pytest.raises(ValueError, match="cannot tell"):
        within_hosts([1.0] * 3, [2.0] * 3, lying(("ab", "ab", "ab")))
