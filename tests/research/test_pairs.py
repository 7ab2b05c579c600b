"""Slow-down from blocks of steps with a known cost."""

import statistics

import pytest

from benchmarks.measuring import pairs
from benchmarks.measuring.pairs import NOTHING, Block, order_of_blocks, slowdowns, steps_of


def test_everything_is_between_two_blocks_of_nothing_and_once_in_each_round():
    order = order_of_blocks(["a", "b"], 10, seed=1)

    assert order[0::2] == [NOTHING] * 21
    assert [sorted(order[i : i + 4 : 2]) for i in range(1, 40, 4)] == [["a", "b"]] * 10
    assert len({tuple(order[i : i + 4]) for i in range(1, 40, 4)}) == 2


def test_steps_across_the_edge_of_a_block_count_in_neither():
    ends = [0.9, 1.1, 1.3, 1.5, 1.7, 1.9, 2.1]

    assert steps_of(Block("a", 1.0, 2.0), ends) == pytest.approx([0.2] * 4)
    assert steps_of(Block("a", 5.0, 6.0), ends) == []


def run(names, step_s, drift=0.0):
    """Blocks of 4 s, and ends of steps that last ``step_s[name]``, growing evenly by ``drift``."""
    blocks = [Block(name, 4.0 * i, 4.0 * (i + 1)) for i, name in enumerate(names)]
    ends, now = [], 0.0
    for block in blocks:
        while now < block.end_s:
            now += step_s[block.name] * (1 + drift * now)
            ends.append(now)
    return blocks, ends


def test_a_cost_of_1_percent_is_found_under_a_drift():
    names = order_of_blocks(["slow"], 10, seed=2)

    blocks, ends = run(names, {NOTHING: 0.025, "slow": 0.02525}, drift=2e-4)

    assert slowdowns(blocks, ends, "slow") == pytest.approx([0.01] * 10, abs=5e-5)
    medians = slowdowns(blocks, ends, "slow", statistics.median)
    assert medians == pytest.approx([0.01] * 10, abs=5e-4)
    # Nothing against nothing: the first and the last block have no two neighbours.
    assert slowdowns(blocks, ends, NOTHING) == pytest.approx([0.0] * 9, abs=5e-5)


def test_an_interval_holds_the_mean_and_narrows_as_pairs_do():
    # Mean 2; standard error √(2.5/5); t(4) = 2.776.
    wide = pairs.interval([0.0, 1.0, 2.0, 3.0, 4.0])

    assert wide.mean == 2.0
    half = 2.776 * 0.5**0.5
    assert (wide.t_low, wide.t_high) == pytest.approx((2 - half, 2 + half), abs=0.01)
    # Of 5⁵ draws, 2.5 % have a mean of at most 0.8, and 2.5 % of at least 3.2.
    assert (wide.low, wide.high) == pytest.approx((0.8, 3.2), abs=0.21)
    assert pairs.interval([1.0, 1.0]).high == 1.0
    with pytest.raises(ValueError, match="too few"):
        pairs.interval([1.0])
