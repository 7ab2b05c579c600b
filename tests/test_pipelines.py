"""Layers divided by work, against every other way to divide them; and how much schedules idle."""

import dataclasses
import functools
import itertools

import pytest

from tests import shipped
from tests.training import orders
from tests.training.cells import TRAINING
from workflow_lib import formulas, pipelines
from workflow_lib.records.degrees import Degrees

#: those whose parameters somebody published: the study's
MODELS = {
    name: model.record(name)
    for name, model in shipped.study().models.items()
    if model.published is not None
}


def training(**options):
    return dataclasses.replace(TRAINING, **options)


def of_stages(layers, work):
    """Work of each of some stages, whose first has the embedding and whose last has the head."""
    of_layers = [count * work.layer for count in layers]
    of_layers[0] += work.embedding
    of_layers[-1] += work.head
    return of_layers


def least_largest(layers, stages, work):
    """The work of the fullest stage in the best of all divisions, found by trying all of them.

    All first parts of a division are tried with all that may follow them; what follows depends on
    how many layers and stages are left alone, so that it is worked out once.
    """

    @functools.cache
    def best(left, stage):
        ends = (work.embedding if stage == 0 else 0) + (work.head if stage == stages - 1 else 0)
        if stage == stages - 1:
            return left * work.layer + ends
        return min(
            max(mine * work.layer + ends, best(left - mine, stage + 1))
            for mine in range(1, left - (stages - 1 - stage) + 1)
        )

    return best(layers, 0)


def test_the_five_models_of_the_study_are_looked_at():
    assert sorted(MODELS) == [
        *("gpt3-175b", "llama3-70b", "llama3-8b", "mixtral-8x22b", "mixtral-8x7b")
    ]


@pytest.mark.parametrize("recomputation", ["none", "full"])
@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_division_has_a_fullest_stage_with_one_percent_less_work(name, pp, recomputation):
    model, options = MODELS[name], training(recomputation=recomputation)
    work = formulas.stage_work(model, options)

    divided = pipelines.layers_by_work(model, Degrees(pp=pp), options)

    assert (len(divided), sum(divided)) == (pp, model.layers)
    assert max(of_stages(divided, work)) <= 1.01 * least_largest(model.layers, pp, work)


def test_the_search_for_the_best_finds_what_listing_them_all_finds():
    work = formulas.stage_work(MODELS["llama3-8b"], training())
    listed = [
        max(of_stages(each, work))
        for each in itertools.product(range(1, 11), repeat=4)
        if sum(each) == 10
    ]

    assert least_largest(10, 4, work) == min(listed)


def test_the_head_of_llama3_8b_is_worth_two_layers():
    # A layer: 2·4096² + 2·4096·1024 of attention, 3·4096·14336 of the rest and 2·4096 of norms are
    # 218 112 000 weights; six FLOPs each, and 6·4096·8192 of attention: 1.510e9. The head: 6 FLOPs
    # for 4096·(128256 + 1) weights and 5 a logit: 3.153e9.
    work = formulas.stage_work(MODELS["llama3-8b"], training())

    assert work.layer == 6 * 218_112_000 + 6 * 4096 * 8192
    assert work.head == 6 * 4096 * 128_257 + 5 * 128_256
    assert work.embedding == 4096
    assert work.head / work.layer == pytest.approx(2.09, abs=0.005)
    # 34.09 layers' worth over four stages is 8.5 each: 8 for two of them and 9 for one, at least.
    divided = pipelines.layers_by_work(MODELS["llama3-8b"], Degrees(pp=4), training())
    assert divided == (8, 9, 9, 6)
    # Recomputed layers take a third more, and the head does not.
    layers_again = training(recomputation="full")
    assert formulas.stage_work(MODELS["llama3-8b"], layers_again).layer == 4 / 3 * work.layer


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "mixtral-8x22b"])
@pytest.mark.parametrize("workload", ["pretrain", "lora"])
def test_the_parts_add_up_to_the_models_flops(name, workload):
    # These models train no padding; what is more than products is the loss and sums of rows.
    model, options = MODELS[name], training(workload=workload, lora_rank=16)
    work = formulas.stage_work(model, options)
    more = 5 * model.vocabulary_size + work.embedding

    whole = work.embedding + model.layers * work.layer + work.head

    counted = formulas.flops_per_token(model, options).causal
    assert whole - more == pytest.approx(counted, rel=1e-12)


def test_generation_adds_up_too_but_for_what_the_last_token_spares():
    model = MODELS["llama3-8b"]
    options = training(workload="inference", generated_tokens=128)
    work = formulas.stage_work(model, options)

    counted = formulas.flops_per_token(model, options).causal

    # The attention of prompts is causal and that of generated tokens is not, by one token in 8192.
    assert model.layers * work.layer + work.head == pytest.approx(counted, rel=2e-3)


def test_chunks_of_a_rank_count_together():
    # Two ranks with two chunks: stages 0 and 2 on the first, 1 and 3 on the second, which has the
    # head: 2.09 layers' worth. 34.09 over two ranks is 17.05 each: 17 layers, and 15 with the head.
    degrees = Degrees(pp=2, virtual_stages=2)

    divided = pipelines.layers_by_work(MODELS["llama3-8b"], degrees, training())

    # Within the last rank the chunk with the head has fewer layers: 9, and 6 with the head's 2.09.
    assert divided == (8, 9, 9, 6)


def test_what_cannot_be_divided_is_left_to_the_planner_to_refuse():
    assert pipelines.layers_by_work(MODELS["mixtral-8x7b"], Degrees(pp=64), training()) == ()


def shape(pp, schedule, chunks):
    return Degrees(pp=pp, schedule=schedule, virtual_stages=chunks)


@pytest.mark.parametrize(
    ("degrees", "micro_batches", "expected"),
    [
        # Four ranks wait for three passes of each kind, of 8 micro-batches.
        (shape(4, "1f1b", 1), 8, 3 / 8),
        (shape(4, "1f1b", 2), 8, 3 / 16),
        # Of forward, backward and weights, 3 · (1 + 1 − 1) of 8 · 3 passes.
        (shape(4, "zero-bubble", 1), 8, 3 / 24),
        (shape(4, "zero-bubble-v", 2), 8, 3 / 48),
        (shape(1, "1f1b", 1), 8, 0),
    ],
)
def test_the_bubble_is_as_worked_out_by_hand(degrees, micro_batches, expected):
    assert pipelines.bubble(degrees, micro_batches) == pytest.approx(expected)


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("1f1b", 1), ("zero-bubble", 1), ("zero-bubble", 2), ("zero-bubble-v", 2)],
)
def test_the_bubble_is_that_of_the_order_that_is_run(pp, rounds, schedule, chunks):
    degrees, micro_batches = shape(pp, schedule, chunks), rounds * pp
    worked = 3 * chunks * micro_batches

    assert orders.run(degrees, micro_batches).units == pytest.approx(
        worked * (1 + pipelines.bubble(degrees, micro_batches))
    )


def test_both_ends_of_a_v_are_on_the_first_rank():
    assert [shape(3, "zero-bubble-v", 2).stages_of(rank) for rank in range(3)] == [
        *((0, 5), (1, 4), (2, 3))
    ]
    # Llama 3 8B's head is worth 2.09 layers: 34.09 over two ranks is 17 and 17, of which the first
    # has 15 layers in its two chunks.
    divided = pipelines.layers_by_work(
        MODELS["llama3-8b"], shape(2, "zero-bubble-v", 2), training()
    )
    assert divided == (9, 9, 8, 6)
