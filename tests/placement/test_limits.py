"""Whether limits of GPUs are advised, on made-up nodes whose answers to them are known."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.placement import made
from tests.placement.made import TWO, heavier, pipeline_cell, square
from tests.placement.made_limits import Node, cells, clock_cells, limited
from workflow_lib.placement import levels, power_at_limit, text
from workflow_lib.placement.advice import advise
from workflow_lib.placement.levels import CLOCK, POWER
from workflow_lib.placement.limits import WORTH, Finder, lowest
from workflow_lib.placement.search import Search


def drawn(seed, spread=0.02, **fields):
    """A node drawn with the shares that the search allows for, but with the head as its FLOPs say
    and power that follows the clock alone.
    """
    random = np.random.default_rng(seed)
    logs = [float(each) for each in random.normal(0, spread, 4)]
    within = {"of_clocks": (0.5, 1), "exponent": (0.2, 0.5), "overhead": (0.02, 0.2)}
    within |= {"waiting_w": (200, 400), "of_waiting": (0, 1)}
    shares = {name: random.uniform(*ends) for name, ends in within.items()}
    return Node(logs, random=random, **shares, **fields)


def bent(seed, **fields):
    """The same with all that: a head that takes 0.8 to 1.2 of its FLOPs, and power of which a part
    does not follow the clock.
    """
    node, random = drawn(seed, lever=CLOCK, **fields), np.random.default_rng([seed, 1])
    node.head, node.still = random.uniform(0.8, 1.2), random.uniform(0, 0.4)
    node.steepness = random.uniform(2, 3.5)
    return node


def placed(cell, found):
    """The cell with the placement that limits were found for."""
    whole, degrees = found.whole, cell.degrees
    if whole.order != tuple(range(len(whole.order))):
        degrees = replace(degrees, gpu_order=whole.order)
    if degrees.virtual_stages == 1 and len(set(whole.layers)) > 1:
        degrees = replace(degrees, stage_layers=whole.layers)
    return replace(cell, degrees=degrees)


def best_energy_gain(node, cell):
    """What limits could gain at a loss of 0.4 % of time, by whoever knows the node: GPU by GPU, as
    long as any can go down by 25 W or 30 MHz.
    """
    most, least, step = (700, 400, 25) if node.lever is POWER else (1690, 1300, 30)
    limits, best, goes_on = [most] * 4, 0.0, True
    while goes_on:
        goes_on = False
        for gpu in range(4):
            tried = [each - step * (number == gpu) for number, each in enumerate(limits)]
            time, energy = node.gains(cell, None, tried)
            if tried[gpu] >= least and time > -0.004 and energy >= best:
                limits, best, goes_on = tried, energy, True
    return best


def holds(interval, value):
    # Limits are whole steps of 5 W or 15 MHz: what is below a tenth of a percent is not looked at.
    return interval.low - 0.0002 <= value <= interval.high + 0.0002


def recommended(cases, make, of_cells, rounds=3):
    """How many, over so many nodes; how often intervals held the truth; of how many nodes limits
    could gain 2 % of energy, and for how many of them some were recommended.
    """
    counts = dict.fromkeys(("recommended", "time", "energy", "true", "found", "lost"), 0)
    for seed in range(cases):
        node = make(seed)
        found = advise(node.measured(of_cells, rounds), of_cells[0].id).limits
        cell = placed(of_cells[0], found)
        time, energy = node.gains(cell, None, found.alone.limits.values)
        counts["recommended"] += found.is_recommended
        counts["time"] += holds(found.alone.time_gain, time)
        counts["energy"] += holds(found.alone.energy_gain, energy)
        worth = best_energy_gain(node, cell) >= 0.02
        counts["true"] += worth
        counts["found"] += worth and found.is_recommended
        counts["lost"] += found.is_recommended and (energy < 0 or time < -0.01)
    return counts


def interleaved_cells(at=(400, 500, 600), lever=POWER):
    """A head, and stages whose layers cannot move: those before the last wait for it."""
    return [made.interleaved(each) for each in cells(at, lever, head=True)]


def a_finder(search, cell):
    """Of limits, where GPUs at u W are √(u / 700) times as fast."""
    at = np.array([600.0, 650.0, 700.0])
    log_speed = np.tile(0.5 * np.log(at / 700), (len(search.head), 1))
    curves = levels.Curves(at, log_speed, 2 * log_speed, 0 * log_speed)
    keys = dict.fromkeys((600.0, 650.0), ((cell.id, 1),))
    found = levels.Levels(POWER, 700.0, ((cell.id, 1),), keys, 1600.0)
    return Finder(search, found, curves, (0, 1), search.pipeline.layers(cell.degrees))


def up_to_five_w(needed_w):
    return 5 * math.ceil(needed_w / 5)


def kept(counts, cases, least=0.8):
    """85 % of intervals hold the truth, 80 % of nodes that gain are found, and none loses."""
    assert counts["time"] >= 0.85 * cases
    assert counts["energy"] >= 0.85 * cases
    assert counts["found"] >= least * counts["true"]
    assert counts["lost"] == 0


def test_gpus_that_wait_are_limited_and_predictions_hold():
    counts = recommended(6, drawn, interleaved_cells())
    assert counts["true"] >= 5
    kept(counts, 6)


@pytest.mark.parametrize(("tp", "rounds"), [(1, 3), (4, 4)])
def test_without_anything_to_gain_limits_are_left(tp, rounds):
    counts = recommended(4, partial(drawn, spread=0.0), cells(tp=tp), rounds)
    assert counts["recommended"] == 0


@pytest.mark.parametrize("tp", [1, 4])
def test_limits_lose_nothing_where_clocks_help_little(tp):
    # A tenth to a half of the clocks' effects comes true, and steps do not tell it well.
    def weak(seed):
        node = drawn(seed, 0.03)
        node.of_clocks = node.random.uniform(0.1, 0.5)
        return node

    counts = recommended(6, weak, cells(tp=tp), rounds=4)
    assert counts["lost"] == 0
    assert counts["time"] >= 5


LOCKS = (1300, 1450, 1600, 1980)


@pytest.mark.long
@pytest.mark.parametrize(
    ("of_cells", "rounds"),
    [
        *((cells(lever=POWER), 3), (cells(lever=POWER, tp=4), 4)),
        *((clock_cells(LOCKS), 3), (clock_cells(LOCKS, tp=4), 4)),
    ],
)
def test_of_many_nodes_without_anything_to_gain_one_in_twenty_is_limited_at_most(of_cells, rounds):
    lever = CLOCK if CLOCK.of(of_cells[-1]) else POWER
    counts = recommended(40, partial(drawn, spread=0.0, lever=lever), of_cells, rounds)
    assert counts["recommended"] <= 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "of_cells", "rounds", "cases", "fewest", "least"),
    [
        # The head makes the others wait; where layers can move, little of that is left.
        (drawn, interleaved_cells(), 3, 40, 30, 0.8),
        (drawn, cells(head=True), 3, 40, 20, 0.8),
        # Slow GPUs make the others wait: those of other stages, and of their own. How much slower
        # they are is known well by orders of a heavier stage, and not at all with one stage.
        (partial(drawn, spread=0.03), cells() + heavier(cells()[:4]), 3, 40, 20, 0.8),
        (partial(drawn, spread=0.03), cells(tp=4), 4, 40, 30, 0.5),
        (partial(drawn, spread=0.01, lever=CLOCK), interleaved_cells(LOCKS, CLOCK), 3, 40, 20, 0.8),
        # Layers were moved before: little is left, and which stage is the longest is not sure.
        (partial(drawn, lever=CLOCK), clock_cells(LOCKS, head=True), 3, 100, 50, 0.8),
        (bent, clock_cells(LOCKS, head=True), 3, 100, 50, 0.8),
    ],
)
def test_of_many_nodes_those_that_gain_are_found_and_predictions_hold(
    make, of_cells, rounds, cases, fewest, least
):
    counts = recommended(cases, make, of_cells, rounds)
    assert counts["true"] >= fewest
    kept(counts, cases, least)


def test_limits_that_only_cost_are_left():
    # Half the power makes a GPU half as fast, and no GPU waits.
    node = Node([0.0] * 4, exponent=1.0)
    of_cells = cells()
    advice = advise(node.measured(of_cells), of_cells[0].id)
    assert not advice.limits.is_recommended
    assert "Leave the power limits" in " ".join(text.advice_sentences(advice))


def test_the_longest_stage_keeps_its_limit_and_others_get_what_they_need_by_hand():
    # A pass of a stage without the head may be r times as long, with r the ratio of work. Steps of
    # equal GPUs whose passes are r times as long are taken to be 1 + 0.875 (r - 1) times as long,
    # with 0.875 the mean share. Here steps are u^-0.5 times as long, so that is at u^-2.
    node = Node([0.0] * 4, exponent=0.5, overhead=0.0, noise=0.0)
    of_cells = interleaved_cells((400, 450, 500, 550, 600, 650))
    measured, cell = node.measured(of_cells), of_cells[0]
    search = Search(measured.with_limits_of(cell), cell)
    found = levels.find_levels(measured, cell, POWER)
    drawn_curves = levels.draw_curves(measured, found, len(search.head))
    layers = search.pipeline.layers(cell.degrees)
    finder = Finder(search, found, drawn_curves, (0, 1, 2, 3), layers)
    embedding, middle, _, head = search.pipeline.work_of(layers)
    assert embedding == pytest.approx(middle, rel=1e-5)
    needed_w = 700 * (1 + 0.875 * (head / middle - 1)) ** -2
    assert 500 < needed_w < 690
    assert finder.limits_for(finder.longest) == (*[up_to_five_w(needed_w)] * 3, 700)
    advised = finder.best()
    assert advised.is_recommended
    assert advised.alone.limits.values[3] == 700


def test_limits_that_are_surely_low_enough_by_hand():
    # GPU 1 is faster than GPU 0, by exp(x) with x from 0 to 0.1. At u W a GPU is √(u / 700) times
    # as fast, so x lets GPU 1 go down to 700 · exp(−2x). In four of five draws x is above 0.02.
    of_cells = square(2)
    search = Search(made.measured(of_cells, TWO, noise=0.0), of_cells[0])
    draws = len(search.head)
    search.head[:] = search.share_of_gain[:] = 1
    search.logs = made.node(np.zeros(draws), np.linspace(0, 0.1, draws))
    finder = a_finder(search, of_cells[0])
    for share, least in ((0.8, 0.02), (0.9, 0.01)):
        limits = (700, up_to_five_w(700 * np.exp(-2 * least)))
        assert finder.limits_surely_for(share) == limits
        assert limits in list(finder.candidates())


def test_what_a_lock_saves_is_read_by_how_far_it_lowers_a_gpu(monkeypatch):
    # GPUs draw their 700 W all the time, and at 1/f of their clock f**2.5 of it. A lock of 1600 MHz
    # lowers the two fast ones alone, so between 1450 and 1600 MHz the mean power has a bend.
    monkeypatch.setattr(power_at_limit, "_STEEPER", (1.0, 1.0), raising=False)
    logs = [0.03, 0.01, -0.01, -0.03]
    node = Node(logs, lever=CLOCK, waiting_w=700.0, of_waiting=1.0, noise=0.0, overhead=0.0)
    of_cells = clock_cells()
    measured, cell = node.measured(of_cells), of_cells[0]
    search = Search(measured.with_limits_of(cell), cell)
    found = levels.find_levels(measured, cell, CLOCK)
    answers = power_at_limit.Answers(
        search, found, levels.draw_curves(measured, found, len(search.head))
    )
    answers.of_saved[:] = 1
    for lock in (1500, 1530, 1560):
        saved = answers.at_limits((lock,) * 4).saved
        for gpu, log in enumerate(logs):
            own_mhz = 1600 * np.exp(log)
            by_hand = 1 - min(1, lock / own_mhz) ** 2.5
            assert saved["n1", gpu][0] == pytest.approx(by_hand, abs=0.006)


def test_locks_that_hold_no_gpu_back_save_nothing():
    # GPUs compute at 1600 MHz. The last waits, so its mean clock is 1600 · exp(0.03), 1649 MHz.
    node = Node([0.0] * 4, lever=CLOCK, noise=0.0)
    of_cells = clock_cells((1640, 1645, 1980))
    found = advise(node.measured(of_cells), of_cells[0].id).limits
    assert found.levels.every == (1640, 1645, pytest.approx(1600 * np.exp(0.03)))
    assert not found.is_recommended
    for gain in (found.alone.time_gain, found.alone.energy_gain):
        assert (gain.low, gain.high) == pytest.approx((0, 0), abs=1e-9)


def test_one_list_serves_all_nodes_so_an_index_gets_the_highest_need():
    # One stage on two nodes. GPU 1 of n2 is the slowest, and of both GPUs 0 that of n2 is slower.
    cell = pipeline_cell(2, pp=1, nodes=2)
    cell = replace(cell, degrees=replace(cell.degrees, dp=4))
    logs = {**TWO, **made.node(-0.06, -0.1, name="n2")}
    search = Search(made.measured([cell], logs, rounds=4, noise=0.0, nodes=("n1", "n2")), cell)
    finder = a_finder(search, cell)
    # By hand: one order does not tell how much of the clocks' difference, 0.04, comes true, so half
    # of it is the estimate. Of that 0.875 comes about in a step.
    ratio = 1 + 0.875 * (np.exp(0.5 * 0.04) - 1)
    assert finder.limits_for(finder.longest) == (up_to_five_w(700 * ratio**-2), 700)


def test_watts_move_to_a_gpu_that_others_wait_for():
    # GPUs have 500 W, one is 8 % slow, and stages have one layer each, which none can give away.
    node = Node([0.0, 0.0, -0.08, 0.01], exponent=0.4)
    plain = cells((400, 600, 700), layers=4)
    of_cells = [limited(each, POWER, 500) for each in plain[:4]] + plain[4:]
    found = advise(node.measured(of_cells), of_cells[0].id).limits
    assert found.is_recommended
    assert found.levels.own == 500
    assert found.levels.every == (400, 500, 600, 700)
    limits = found.alone.limits.values
    assert limits[2] > 500
    assert max(*limits[:2], limits[3]) < 500
    assert sum(limits) <= 4 * 500
    time, energy = node.gains(placed(of_cells[0], found), None, limits)
    assert found.alone.time_gain.low > 0
    assert holds(found.alone.time_gain, time)
    assert holds(found.alone.energy_gain, energy)
    assert max(found.alone.time_gain.low, found.alone.energy_gain.low) > WORTH


def test_a_lock_that_no_gpu_reaches_is_no_lock():
    node = Node([0.0] * 4, lever=CLOCK, noise=0.0)
    of_cells = interleaved_cells(LOCKS, CLOCK)
    found = advise(node.measured(of_cells), of_cells[0].id).limits
    assert found.levels.unreached == 1980
    # The highest mean clock: 1600 MHz, and the last stage's is 3 % up by waiting.
    assert found.levels.own == pytest.approx(1600 * np.exp(0.03))
    assert found.is_recommended
    assert found.alone.limits.values[3] >= 1600
    assert max(found.alone.limits.values[:3]) < 1600


def test_the_lowest_limit_that_is_fast_enough_by_hand():
    grid, speeds = np.array([400.0, 500.0, 600.0, 700.0]), np.array([0.8, 0.9, 0.96, 1.0])
    assert [lowest(grid, speeds, each) for each in (0.85, 0.9, 0.91, 1.1)] == [1, 1, 2, 3]
