"""Intervals of the difference of two cells, in simulated sweeps whose truth is known."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from workflow_lib.comparison.host_effects import allowance
from workflow_lib.intervals.contrasts import Design, design, difference
from workflow_lib.intervals.differences import apart, drift, in_blocks
from workflow_lib.order import in_order
from workflow_lib.records.measures import MEASURES

#: standard deviation of a run; all of logarithms
NOISE = 0.003
#: what is wrong: the drift of a run, what a host or a date adds, how A's spread exceeds B's
SCENES = {
    "no effect": (0.0, 0.0, 1.0),
    "drift": (0.001, 0.0, 1.0),
    # Hosts with the same cells differed by 0.2 to 1.6 % (intervals/hosts.py).
    "date effect": (0.0, 0.011, 1.0),
    "unequal spread": (0.0, 0.0, 4.0),
    "all of them": (0.001, 0.011, 4.0),
}
#: the stated rate of false words, and by how much a simulated one may exceed it
STATED, WITHIN = 0.05, 0.02


@functools.cache
def orders(cells: int, blocks: int) -> list[tuple[list[int], list[int]]]:
    """The places of two cells' runs in the order of submission, for many seeds."""
    runs = [(f"cell {cell}", block + 1) for block in range(blocks) for cell in range(cells)]
    found = []
    for seed in range(200):
        place = {run: number for number, run in enumerate(in_order(runs, seed))}
        sides = ([place[f"cell {cell}", block + 1] for block in range(blocks)] for cell in (0, 1))
        found.append(tuple(sides))
    return found


def rate_in_blocks(scene: str, cells: int, blocks: int, trials: int) -> float:
    """How often two equal cells of a sweep are told apart; each block has a date of its own."""
    drifts, dates, spread = SCENES[scene]
    chance, false = np.random.default_rng(11), 0
    for trial in range(trials):
        of_a, of_b = (np.array(side) for side in orders(cells, blocks)[trial % 200])
        date = chance.normal(0, dates, blocks)
        a = chance.normal(0, spread * NOISE, blocks) + drifts * of_a + date
        b = chance.normal(0, NOISE, blocks) + drifts * of_b + date
        found = in_blocks(a, b)
        false += not found.low <= 0 <= found.high
    return false / trials


def rate_apart(scene: str, runs: int, trials: int) -> float:
    """The same of two cells of which all runs of A were before all of B, on another host."""
    drifts, dates, spread = SCENES[scene]
    chance, false = np.random.default_rng(12), 0
    before, after = np.arange(runs), np.arange(runs) + runs
    lie = Design("two hosts", tuple(before), tuple(after))
    allowed = np.log1p(allowance(MEASURES["tokens_per_s"], lie))
    for _ in range(trials):
        a = chance.normal(0, spread * NOISE, runs) + drifts * before + chance.normal(0, dates)
        b = chance.normal(0, NOISE, runs) + drifts * after + chance.normal(0, dates)
        found = apart(a, b, before, after)
        false += not found.low - allowed <= 0 <= found.high + allowed
    return false / trials


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("cells", [2, 6])
@pytest.mark.parametrize("blocks", [3, 5])
def test_in_blocks_equal_cells_are_told_apart_as_rarely_as_stated(scene, cells, blocks):
    assert rate_in_blocks(scene, cells, blocks, trials=3000) <= STATED + WITHIN


@pytest.mark.parametrize("scene", ["no effect", "date effect", "unequal spread"])
def test_in_blocks_the_stated_rate_is_the_true_one_where_nothing_drifts(scene):
    assert rate_in_blocks(scene, 4, 3, trials=4000) == pytest.approx(STATED, abs=WITHIN)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("runs", [3, 10])
def test_apart_equal_cells_are_told_apart_as_rarely_as_stated(scene, runs):
    assert rate_apart(scene, runs, trials=1500) <= STATED + WITHIN


@pytest.mark.parametrize("hosts", [(1, 1, 2), (1, 2, 2), (1, 2, 3)])
def test_on_hosts_that_sides_do_not_share_equal_cells_are_told_apart_as_rarely(hosts):
    """Hosts of A's runs; B's are others in the same places, and blocks take turns."""
    chance, false, trials = np.random.default_rng(14), 0, 3000
    blocks = [
        {"platform": "h100", "order_seed": 0, "order_block": n, "started_unix_s": 100.0 * n}
        for n in range(3)
    ]
    gpus = [[frozenset({f"GPU-{side}{host}"}) for host in hosts] for side in "ab"]
    lie = design(blocks, blocks, *gpus)
    allowed = np.log1p(allowance(MEASURES["tokens_per_s"], lie))
    for _ in range(trials):
        of_hosts = chance.normal(0, 0.011, (2, 4))
        a, b = (chance.normal(0, NOISE, 3) + of_side[[*hosts]] for of_side in of_hosts)
        found = difference(a, b, lie)
        false += not found.low - allowed <= 0 <= found.high + allowed
    assert false / trials <= STATED + WITHIN


@pytest.mark.long
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("count", [3, 4, 5, 10])
def test_stated_rates_hold_in_many_trials(scene, count):
    for cells in (2, 6, 20):
        assert rate_in_blocks(scene, cells, count, trials=20_000) <= STATED + WITHIN
    assert rate_apart(scene, count, trials=10_000) <= STATED + WITHIN


def test_a_difference_of_ten_standard_deviations_is_found_in_three_blocks():
    chance = np.random.default_rng(13)
    found = [
        in_blocks(chance.normal(10 * NOISE, NOISE, 3), chance.normal(0, NOISE, 3)).low > 0
        for _ in range(500)
    ]
    assert np.mean(found) > 0.95


def test_in_blocks_the_interval_is_that_of_paired_differences():
    # Differences 1, 2 and 3: their mean 2, standard error 1/√3, and t 4.3027.
    found = in_blocks([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert found.estimate == pytest.approx(2.0)
    assert (found.low, found.high) == pytest.approx(
        (2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5), abs=1e-4
    )


def test_apart_the_interval_holds_welchs():
    # scipy.stats.ttest_ind(…, equal_var=False).confidence_interval(): −3.71522 to 0.38189
    found = apart([1.0, 2.0, 3.0], [3.0, 4.0, 4.0], [0, 2, 4], [1, 3, 5])
    assert found.estimate == pytest.approx(-5 / 3)
    assert found.low <= -3.71522 + 1e-4
    assert found.high >= 0.38189 - 1e-4


def test_a_drift_is_found_as_it_is():
    # Both sides rise by 2 a place, and lie 5 apart.
    found = drift([0.0, 4.0, 8.0], [7.0, 11.0, 15.0], [0, 2, 4], [1, 3, 5])
    assert (found.estimate, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    between = apart([0.0, 4.0, 8.0], [7.0, 11.0, 15.0], [0, 2, 4], [1, 3, 5])
    assert between.low <= -5 <= between.high


def test_equal_values_have_no_spread_to_speak_of():
    found = apart([1.0] * 3, [1.0] * 3, [0, 1, 2], [3, 4, 5])
    assert (found.estimate, found.low, found.high) == (0.0, 0.0, 0.0)
