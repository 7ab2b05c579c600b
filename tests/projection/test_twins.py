"""Twins, their bubble, and comparisons that are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from workflow_lib.projection.__main__ import main
from workflow_lib.projection.twins import Side, refusals, twin_of, whole_over_twin
from workflow_lib.records import Degrees, RecordError, Training
from workflow_lib.study import load_study

STUDY = load_study(Path("config"))
TRAINING = Training(
    micro_batch_size=1,
    global_batch_size=128,
    precision="bf16",
    zero_stage=1,
    sequence_parallel=True,
    recomputation="full",
    overlap=False,
    learning_rate=1e-4,
    seed=1,
    warmup_steps=5,
    measured_steps=20,
)
WHOLE = Side(STUDY.models["gpt3-175b"].record("gpt3-175b"), Degrees(tp=4, pp=8, dp=2), TRAINING)


def test_a_twin_keeps_stages_and_micro_batches_and_cuts_the_pipeline():
    twin = twin_of(WHOLE, 8)
    # 96 layers on 8 ranks are 12 each; 8 GPUs hold TP 4 × PP 2.
    assert (twin.degrees.tp, twin.degrees.pp, twin.degrees.dp) == (4, 2, 1)
    assert twin.model.layers == 24
    assert twin.model.hidden_size == 12288
    assert twin.micro_batches == WHOLE.micro_batches == 64
    assert list(refusals(twin, WHOLE)) == []


def test_the_whole_takes_longer_by_its_bubble():
    # (64 + 7) / (64 + 1)
    assert whole_over_twin(twin_of(WHOLE, 8), WHOLE) == pytest.approx(71 / 65)


def test_published_twins_differ_by_that_bubble():
    # Llama 3.1 405B on 192 GPUs with 42 layers and PP 3, and on 576 with 126 and PP 9: v 7, m 63.
    model = dataclasses.replace(WHOLE.model, layers=126)
    training = dataclasses.replace(TRAINING, global_batch_size=63)
    whole = Side(model, Degrees(tp=8, pp=9, virtual_stages=7), training)
    twin = twin_of(whole, 24)
    assert twin.model.layers == 42
    assert 17.30 * whole_over_twin(twin, whole) == pytest.approx(17.50, rel=0.002)


@pytest.mark.parametrize(
    ("small", "large"), [("gpt3-30b", "gpt3-175b"), ("llama3-30b", "llama3-70b")]
)
def test_the_studys_small_models_are_no_twins_of_its_large_ones(small, large):
    whole = Side(STUDY.models[large].record(large), Degrees(tp=4, pp=8), TRAINING)
    twin = Side(STUDY.models[small].record(small), Degrees(tp=4, pp=4), TRAINING)
    with pytest.raises(RecordError, match=f"{small} is not a twin of {large}: ") as refused:
        whole_over_twin(twin, whole)
    # On TP 4 PP 8 a stage has 12 or 10 layers; 16 and 32 layers on PP 4 have 4 and 8.
    stages = {"gpt3-30b": "(4,) in the twin, (12,)", "llama3-30b": "(8,) in the twin, (10,)"}
    assert f"layers of the stages: {stages[small]} in the whole" in str(refused.value)


def test_the_studys_small_llama_is_a_twin_where_its_stages_have_as_many_layers():
    # 32 layers on PP 2 and 80 on PP 5 are 16 a stage.
    whole = Side(STUDY.models["llama3-70b"].record("llama3-70b"), Degrees(tp=4, pp=5), TRAINING)
    twin = Side(STUDY.models["llama3-30b"].record("llama3-30b"), Degrees(tp=4, pp=2), TRAINING)
    assert whole_over_twin(twin, whole) == pytest.approx((128 + 4) / (128 + 1))


def test_another_number_of_micro_batches_is_refused():
    twin = twin_of(WHOLE, 8)
    training = dataclasses.replace(twin.training, global_batch_size=32)
    other = dataclasses.replace(twin, training=training)
    assert list(refusals(other, WHOLE)) == [
        "number of micro-batches: 32 in the twin, 64 in the whole"
    ]


def test_sequences_are_cut_as_in_the_whole():
    whole = dataclasses.replace(WHOLE, degrees=dataclasses.replace(WHOLE.degrees, cp=2))
    twin = twin_of(whole, 16)
    # TP 4 × CP 2 × PP 2
    assert (twin.degrees.cp, twin.degrees.pp, twin.degrees.world_size) == (2, 2, 16)
    assert list(refusals(twin, whole)) == []
    assert list(refusals(twin, WHOLE)) == ["CP: 2 in the twin, 1 in the whole"]


def test_another_schedule_is_refused():
    whole = dataclasses.replace(
        WHOLE, degrees=dataclasses.replace(WHOLE.degrees, schedule="zero-bubble")
    )
    with pytest.raises(RecordError, match="the idle time of its schedule was not measured"):
        twin_of(whole, 8)
    assert "schedule: 1f1b in the twin, zero-bubble in the whole" in refusals(WHOLE, whole)


def test_experts_keep_their_replicas():
    model = STUDY.models["mixtral-8x7b"].record("mixtral-8x7b")
    training = dataclasses.replace(TRAINING, routing="balanced")
    twin = twin_of(Side(model, Degrees(pp=4, dp=8, ep=8), training), 16)
    assert (twin.degrees.pp, twin.degrees.dp, twin.degrees.ep) == (2, 8, 8)
    assert twin.micro_batches == 16


def test_too_few_gpus_are_refused():
    with pytest.raises(RecordError, match="its twin needs 4 GPUs, not 3"):
        twin_of(WHOLE, 3)
    uneven = dataclasses.replace(WHOLE, degrees=Degrees(tp=4, pp=7))
    with pytest.raises(RecordError, match=r"its stages have \[13, 14\] layers"):
        twin_of(uneven, 8)


def test_the_command_makes_a_twin_of_a_planned_cell(capsys):
    cell = "h200/gpt3-175b/tp8-pp4-dp1_mb1-gb128-bf16-zero1-sp-recompute_"
    assert main(["twin", "--cell", cell, "--gpus", "8"]) == 0
    # 96 layers on 4 ranks are 24; (128 + 3) / 128 passes.
    said = capsys.readouterr().out
    assert "layers: 24" in said
    assert "multiplied by 1.0234" in said
    assert main(["twin", "--cell", "h200/", "--gpus", "8"]) == 1
    assert "expected 1" in capsys.readouterr().err


def test_the_command_refuses_two_cells_that_are_no_twins(capsys):
    cell = "h200/gpt3-175b/tp8-pp4-dp1_mb1-gb128-bf16-zero1-sp-recompute_"
    other = "h200/gpt3-175b/tp4-pp8-dp1_mb1-gb128-bf16-zero1-sp-recompute_"
    assert main(["twin", "--cell", cell, "--against", other]) == 1
    assert "TP: 4 in the twin, 8 in the whole" in capsys.readouterr().err
