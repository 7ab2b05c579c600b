"""Whether intervals of placements hold what comes true, on nodes that follow from physics.

Steps there are those of single passes, and so nothing of what is tested is in the test.
"""

import pytest

from tests.placement.made import heavier, square
from tests.placement.made_passes import Node
from workflow_lib.placement.advice import advise


def counted(cases, cells, **fields):
    """How often intervals of time, of energy and of the warmest GPU hold the truth; how many
    placements are recommended; and how many gain 2 %, are found, and lose.
    """
    counts = dict.fromkeys(("time", "energy", "warmest", "recommended", "true", "found", "lost"), 0)
    for seed in range(cases):
        node = Node(seed, cells[0].ranks_per_node, **fields)
        advice = advise(node.measured(cells), cells[0].id)
        best = advice.best
        time, energy, warmest_c = node.gains(cells[0], best.order, best.layers)
        counts["time"] += holds(best.time_gain, time, 2e-4)
        counts["energy"] += holds(best.energy_gain, energy, 2e-4)
        counts["warmest"] += holds(best.temperature_change_c, warmest_c, 0.02)
        counts["recommended"] += advice.is_recommended
        counts["true"] += time >= 0.02
        counts["found"] += time >= 0.02 and advice.is_recommended
        counts["lost"] += time < 0 and advice.is_recommended
    return counts


def holds(interval, value, least):
    """To a part of what is shown: 0.1 % and 0.1 °C."""
    return interval.low - least <= value <= interval.high + least


def kept(counts, cases):
    assert min(counts[each] for each in ("time", "energy", "warmest")) >= 0.85 * cases
    assert counts["found"] >= 0.8 * counts["true"]
    assert counts["lost"] == 0


def many(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("cells", "fields", "cases", "fewest"),
    [
        # 30 layers are uneven over 4 stages: 7 or 8 each.
        (square(head=True, layers=30), {}, 40, 30),
        (square(head=True), {}, 40, 30),
        # A heavier stage tells how much clocks help. Without a head little else is to gain.
        (square() + heavier(square()), {"spread": 0.1}, 20, 5),
        many(square() + heavier(square()), {"spread": 0.1}, 40, 10),
        many(square(16, 4) + heavier(square(16, 4)), {"spread": 0.1}, 40, 10),
        many(square(8), {"spread": 0.1}, 20, 3),
        many(square(head=True), {"known": True}, 40, 30),
        many(square(8, 4, head=True), {}, 40, 20),
        many(square(16, 4, head=True), {}, 40, 30),
        many(square(8, head=True), {}, 20, 15),
    ],
)
def test_intervals_hold_what_comes_true_and_placements_that_gain_are_found(
    cells, fields, cases, fewest
):
    counts = counted(cases, cells, **fields)
    assert counts["true"] >= fewest
    kept(counts, cases)


def test_gpus_that_differ_too_little_for_a_layer_are_left():
    counts = counted(20, square(), spread=0.01)
    assert counts["recommended"] == 0
    kept(counts, 20)


def test_clocks_that_help_little_mislead_nobody():
    # 0.1 to 0.5 of the clocks' effects come true. By steps of even stages that is not known well.
    counts = counted(20, square(), spread=0.1, follows=(0.1, 0.5))
    assert counts["lost"] == 0
    assert counts["time"] >= 17


def test_clocks_that_help_little_lose_nothing_where_a_heavier_stage_tells_so():
    cells = square() + heavier(square())
    assert counted(20, cells, spread=0.1, follows=(0.1, 0.5))["lost"] == 0
