"""A pipeline's step by its GPUs' speeds, against values by hand."""

import itertools

import numpy as np
import pytest

from tests.placement.made import FOUR, node, pipeline_cell, with_degrees
from tests.placement.made_passes import one_f_one_b
from workflow_lib import pipelines
from workflow_lib.placement.stages import Pipeline

ONE_TOKEN = {"workload": "inference", "generated_tokens": 1}


@pytest.mark.parametrize(
    ("cell", "passes", "step"),
    [
        # 32 micro-batches over 4 equal stages: (32 − 1) + 4 passes.
        (pipeline_cell(4), [1.0] * 4, 35),
        # 31 times the slower, and both once: 31 · 1.25 + 1.25 + 1.
        (pipeline_cell(2), [1.0, 1.25], 41),
        # The first of two stages computes for 32 · 1.25. Before its first and its last backward
        # pass it waits for both of the other's, and has one pass of its own meanwhile.
        (pipeline_cell(2), [1.25, 1.0], 32 * 1.25 + (1 - 1.25 / 3) + (1 - 1.25 * 2 / 3)),
        # Forward passes alone do not wait for others to come back.
        (pipeline_cell(2, **ONE_TOKEN), [1.25, 1.0], 32 * 1.25 + 1),
        # The last chunk has the head, and takes a little more than its rank's other one.
        (with_degrees(pipeline_cell(2), schedule="zero-bubble"), [1.0, 1.0], 32 + 1 / 3),
        (with_degrees(pipeline_cell(2), virtual_stages=2), [1.0, 1.0], 32 + 1 / 2),
    ],
)
def test_a_step_by_its_passes_by_hand(cell, passes, step):
    assert Pipeline(cell).step(np.array(passes)) == pytest.approx(step, rel=1e-5)


def test_equal_stages_take_what_the_bubble_says():
    cell = pipeline_cell(4)
    step = Pipeline(cell).step(np.ones(4))
    assert step / 32 == pytest.approx(1 + pipelines.bubble(cell.degrees, 32))


@pytest.mark.parametrize(("recomputation", "backward"), [("none", 2), ("full", 3)])
@pytest.mark.parametrize(
    ("stages", "micro_batches"), [(2, 8), (4, 2), (4, 3), (4, 32), (8, 8), (8, 32)]
)
def test_1f1b_takes_as_long_as_its_passes_one_by_one(
    stages, micro_batches, recomputation, backward
):
    options = {"global_batch_size": micro_batches, "recomputation": recomputation}
    pipeline = Pipeline(pipeline_cell(stages, **options))
    random = np.random.default_rng(1)
    for _ in range(10):
        passes = 1 + random.uniform(-0.1, 0.1, stages)
        each = np.repeat(passes[:, None] / (1 + backward), micro_batches, axis=1)
        assert pipeline.step(passes) == pytest.approx(one_f_one_b(each, backward * each), rel=1e-3)


def test_a_stage_is_as_fast_as_its_slowest_gpu():
    pipeline = Pipeline(pipeline_cell(4, tp=2))
    logs = node(*(np.log([speed]) for speed in (1.0, 0.9, 1.1, 1.0)))
    speeds = pipeline.speeds([(0, 1, 2, 3), (0, 2, 1, 3)], ["n1"], logs)
    assert speeds[:, 0] == pytest.approx(np.array([[0.9, 1.0], [1.0, 0.9]]))


def test_orders_are_those_that_differ_in_stages_the_plain_one_first():
    pipeline = Pipeline(pipeline_cell(4, tp=2))
    orders = pipeline.orders(["n1"], FOUR)
    # 4! / (2! · 2!): which two GPUs have the first stage.
    assert len(orders) == 6
    assert orders[0] == (0, 1, 2, 3)
    pairs = itertools.combinations(range(4), 2)
    assert {frozenset(order[:2]) for order in orders} == set(map(frozenset, pairs))


def test_one_order_serves_all_nodes():
    pipeline = Pipeline(pipeline_cell(2, pp=4, nodes=2))
    none, slow = np.array([0.0]), np.array([-0.1])
    logs = {**node(none, none), **node(slow, none, name="n2")}
    speeds = pipeline.speeds([(1, 0)], ["n1", "n2"], logs)
    assert speeds[0, 0] == pytest.approx(np.exp([0, 0, 0, -0.1]))


def test_with_too_many_orders_faster_gpus_have_the_heavier_stages():
    cell = pipeline_cell(16, layers=32, head=True)
    speeds = node(*(-0.01 * gpu for gpu in range(16)))
    plain, by_speed = Pipeline(cell).orders(["n1"], speeds)
    assert plain == tuple(range(16))
    assert by_speed[15] == 0
    assert sorted(by_speed) == list(range(16))


def test_layers_are_divided_so_that_the_longest_pass_is_as_short_as_can_be():
    pipeline = Pipeline(pipeline_cell(4, layers=12))
    speeds = np.array([1.0, 0.7, 1.1, 0.9])
    found = pipeline.divided(speeds)
    assert found.sum() == 12
    # Every division of 12 layers, one or more a stage.
    every = [each for each in itertools.product(range(1, 10), repeat=4) if sum(each) == 12]
    best = min(pipeline.passes(np.array(each), speeds).max() for each in every)
    assert pipeline.passes(found, speeds).max() == pytest.approx(best)


def test_a_layer_pays_beyond_one_plus_stages_over_layers():
    # 80 layers on 4 stages: 20 each. A layer less on a slow stage pays beyond 21 / 20 = 1.05.
    pipeline = Pipeline(pipeline_cell(4, layers=80))
    of_first = [pipeline.divided(np.array([1 / each, 1.0, 1.0, 1.0]))[0] for each in (1.04, 1.06)]
    assert of_first == [20, 19]


def test_the_studys_two_cases_follow_from_clocks_on_both_sides_of_the_threshold():
    """docs/explanation/placement.md: layers, stages, what efficiency changed by, and what follows.

    Efficiency is 1 / (time · energy), and energy follows time.
    """
    for layers, stages, efficiency, step, ratio in (
        (80, 4, 1.04, 0.981, 1.071),
        (96, 8, 0.93, 1.037, 1.045),
    ):
        each = layers / stages
        assert efficiency**-0.5 == pytest.approx(step, abs=5e-4)
        assert (each + 1) / each / efficiency**-0.5 == pytest.approx(ratio, abs=1e-3)
        assert (ratio > 1 + stages / layers) is (efficiency > 1)
        common = (each + 1) / each / 1.06
        assert (common < 1) is (efficiency > 1)
