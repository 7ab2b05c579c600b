"""Twins, their bubble, and comparisons that are refused."""

from dataclasses import replace

import pytest

from tests import made_cells, shipped
from tests.texts import lacking, numbers
from workflow_lib.projection.__main__ import main
from workflow_lib.projection.twins import Side, refusals, twin_of, whole_over_twin
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.reading import RecordError

STUDY = shipped.study()
TRAINING = replace(made_cells.TRAINING, sequence_parallel=True, recomputation="full")


def side(model, training=None, **degrees):
    return Side(STUDY.models[model].record(model), Degrees(**degrees), training or TRAINING)


def with_degrees(of, **changes):
    return replace(of, degrees=replace(of.degrees, **changes))


WHOLE = side("gpt3-175b", tp=4, pp=8, dp=2)


def refused(twin, whole):
    """The numbers in each difference for which two are no twins."""
    return [numbers(why) for why in refusals(twin, whole)]


def test_a_twin_keeps_stages_and_micro_batches_and_cuts_the_pipeline():
    twin = twin_of(WHOLE, 8)
    # 96 layers on 8 ranks are 12 each; 8 GPUs hold TP 4 × PP 2.
    assert (twin.degrees.tp, twin.degrees.pp, twin.degrees.dp) == (4, 2, 1)
    assert twin.model.layers == 24
    assert twin.model.hidden_size == 12288
    assert twin.micro_batches == WHOLE.micro_batches == 64
    assert list(refusals(twin, WHOLE)) == []


def test_the_whole_takes_longer_by_its_bubble_without_the_head():
    # By hand, FLOPs a token with full recomputation: a layer has 12·12 288² weights and attends to
    # 1 024 of 2 048 positions on average, with 4 passes; the head has 12 288 · 50 304, with 3.
    layer = 8 * 12 * 12288**2 + 4 * (4 * 1024 * 12288)
    head = 6 * 12288 * 50304
    a, last = 12 * layer, 12 * layer + head
    # Down through the other ranks, then all micro-batches through the last, which has the head.
    expected = (7 * a + 64 * last) / (1 * a + 64 * last)
    factor = whole_over_twin(twin_of(WHOLE, 8), WHOLE)
    assert factor == pytest.approx(expected, rel=2e-5)
    assert factor < 71 / 65 - 1e-3


def test_a_heavy_head_is_not_multiplied_by_the_bubble():
    # Llama 3 8B on PP 8 has 4 layers a rank, and its head is as much work as two layers: 6 · 4096 ·
    # 128 256 FLOPs a token, where a layer's 218.1 million weights and attention take 1.510e9.
    training = replace(TRAINING, global_batch_size=32, recomputation="none")
    whole = side("llama3-8b", training, pp=8)
    twin = twin_of(whole, 2)
    assert (twin.model.layers, twin.degrees.pp) == (8, 2)
    head = 3.152 / 1.510
    expected = (7 * 4 + 32 * (4 + head)) / (1 * 4 + 32 * (4 + head))
    assert whole_over_twin(twin, whole) == pytest.approx(expected, rel=3e-4)
    # The bubble's law alone says 39 / 33, 5.5 % more.
    assert 39 / 33 / whole_over_twin(twin, whole) == pytest.approx(1.055, abs=0.001)


def test_a_twin_of_one_rank_has_embedding_and_head_as_well():
    whole = with_degrees(WHOLE, dp=1)
    twin = twin_of(whole, 4)
    assert twin.degrees.pp == 1
    head = 6 * 12288 * 50304 / (8 * 12 * 12288**2 + 16 * 1024 * 12288)
    # 128 micro-batches through one rank of 12 layers and the head.
    expected = 1 + 7 * 12 / (128 * (12 + head))
    assert whole_over_twin(twin, whole) == pytest.approx(expected, rel=1e-4)


def test_a_twin_of_several_chunks_has_whole_rounds_of_micro_batches():
    whole = with_degrees(WHOLE, dp=1, virtual_stages=2)
    # 128 micro-batches: PP 3 would fit on 12 GPUs, and its schedule cannot run them.
    assert twin_of(whole, 12).degrees.pp == 2
    model = replace(WHOLE.model, layers=36)
    assert refused(replace(with_degrees(whole, pp=3), model=model), whole) == [[128, 3]]


def test_published_twins_differ_by_that_bubble():
    # Llama 3.1 405B on 192 GPUs with 42 layers and PP 3, and on 576 with 126 and PP 9: v 7, m 63.
    model = replace(WHOLE.model, layers=126)
    training = replace(TRAINING, global_batch_size=63)
    whole = Side(model, Degrees(tp=8, pp=9, virtual_stages=7), training)
    twin = twin_of(whole, 24)
    assert twin.model.layers == 42
    assert 17.30 * whole_over_twin(twin, whole) == pytest.approx(17.50, rel=0.002)


@pytest.mark.parametrize(
    # On TP 4 PP 8 a stage has 12 or 10 layers; 16 and 32 layers on PP 4 have 4 and 8.
    ("small", "large", "layers"),
    [("gpt3-30b", "gpt3-175b", [4, 12]), ("llama3-30b", "llama3-70b", [8, 10])],
)
def test_the_studys_small_models_are_no_twins_of_its_large_ones(small, large, layers):
    whole, twin = side(large, tp=4, pp=8), side(small, tp=4, pp=4)
    assert layers in refused(twin, whole)
    with pytest.raises(RecordError, match=f"{small} .*{large}: ") as caught:
        whole_over_twin(twin, whole)
    assert lacking(caught.value, *refusals(twin, whole)) == []


def test_the_studys_small_llama_is_a_twin_where_its_stages_have_as_many_layers():
    # 32 layers on PP 2 and 80 on PP 5 are 16 a stage.
    whole, twin = side("llama3-70b", tp=4, pp=5), side("llama3-30b", tp=4, pp=2)
    # A layer of 855.6 million weights, three passes of 6 FLOPs and one again, attends to half of
    # 8 192 positions; the head has 8 192 · 128 256 weights.
    layer = 8 * 855.6e6 + 4 * (4 * 4096 * 8192)
    last = 16 * layer + 6 * 8192 * 128256
    expected = (4 * 16 * layer + 128 * last) / (16 * layer + 128 * last)
    assert whole_over_twin(twin, whole) == pytest.approx(expected, rel=1e-4)


def test_sequences_are_cut_as_in_the_whole():
    whole = with_degrees(WHOLE, cp=2)
    twin = twin_of(whole, 16)
    # TP 4 × CP 2 × PP 2
    assert (twin.degrees.cp, twin.degrees.pp, twin.degrees.world_size) == (2, 2, 16)
    assert refused(twin, whole) == []


def test_another_number_of_micro_batches_cut_or_schedule_is_refused():
    twin = twin_of(WHOLE, 8)
    training = replace(twin.training, global_batch_size=32)
    assert refused(replace(twin, training=training), WHOLE) == [[32, 64]]
    (why,) = refusals(twin_of(with_degrees(WHOLE, cp=2), 16), WHOLE)
    assert why.startswith("CP: 2 ")
    other = with_degrees(WHOLE, schedule="zero-bubble")
    assert [why for why in refusals(WHOLE, other) if "1f1b" in why and "zero-bubble" in why]


@pytest.mark.parametrize(
    ("changes", "both"),
    [
        ({"backend": "torch"}, ("deepspeed", "torch")),
        ({"power_limits_w": (400,) * 8}, ("400", "[]")),
        ({"trainer": "megatron"}, ("megatron", "native")),
    ],
)
def test_another_program_or_limit_is_refused(changes, both):
    whole = replace(WHOLE, training=replace(TRAINING, backend="deepspeed"), gpu="H200")
    twin = twin_of(whole, 8)
    assert list(refusals(twin, whole)) == []
    (why,) = refusals(replace(twin, training=replace(twin.training, **changes)), whole)
    assert [word for word in both if word in why] == [*both]


def test_the_command_refuses_a_twin_on_another_model_of_gpu(capsys):
    # One layout with four replicas and with one.
    whole = "h100/llama3-8b/tp1-pp2-dp4_mb1-gb32-bf16-zero1-compiled-torch_"
    twin = "h200x2/llama3-8b/tp1-pp2-dp1_mb1-gb8-bf16-zero1-compiled-torch_d47963b9"
    assert main(["twin", "--cell", whole, "--against", twin]) == 1
    assert "GPU: H200 in the twin, H100 in" in capsys.readouterr().err


def test_experts_keep_their_replicas():
    training = replace(TRAINING, routing="balanced")
    twin = twin_of(side("mixtral-8x7b", training, pp=4, dp=8, ep=8), 16)
    assert (twin.degrees.pp, twin.degrees.dp, twin.degrees.ep) == (2, 8, 8)
    assert twin.micro_batches == 16


@pytest.mark.parametrize(
    ("changes", "gpus", "named"),
    [
        ({}, 3, r"\b4 GPUs.*\b3$"),
        # Seven stages of 96 layers have 13 or 14.
        ({"pp": 7, "dp": 1}, 8, r"\[13, 14\]"),
        ({"schedule": "zero-bubble"}, 8, "schedule"),
    ],
)
def test_what_has_no_twin_is_refused(changes, gpus, named):
    with pytest.raises(RecordError, match=named):
        twin_of(with_degrees(WHOLE, **changes), gpus)


CELLS = [
    f"h200/gpt3-175b/{layout}-dp1_mb1-gb128-bf16-zero1-sp-recompute_"
    for layout in ("tp8-pp4", "tp4-pp8")
]


def test_the_command_makes_a_twin_of_a_planned_cell_and_refuses_what_is_none(capsys):
    assert main(["twin", "--cell", CELLS[0], "--gpus", "8"]) == 0
    # 96 layers on 4 ranks are 24. Of 128 + 3 passes 3 have no head: 3 / (128 + 128 · head/rank).
    said = capsys.readouterr().out
    assert "layers: 24" in said
    head = 6 * 12288 * 50304 / (24 * (8 * 12 * 12288**2 + 16 * 1024 * 12288))
    assert f" {1 + 3 / (128 * (1 + head)):.4f}" in said
    assert main(["twin", "--cell", "h200/", "--gpus", "8"]) == 1
    assert "'h200/'" in capsys.readouterr().err
    assert main(["twin", "--cell", CELLS[0], "--against", CELLS[1]]) == 1
    assert "TP: 4 in" in capsys.readouterr().err
