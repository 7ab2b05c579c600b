import re
from dataclasses import replace

import pytest

from tests.training.cells import GPT, LLAMA, MIXTRAL, TRAINING
from workflow_lib.records import Degrees
from workflow_lib.trainers.capabilities import refusal, with_backend

ZERO_BUBBLE = Degrees(pp=2, schedule="zero-bubble")
V_SHAPED = Degrees(pp=2, virtual_stages=2, schedule="zero-bubble-v")
SPLIT = {"backend": "torch", "overlap": True}
FP8 = {"backend": "torch", "precision": "fp8"}
SPLIT_SEQUENCE = {**SPLIT, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("degrees", "changes", "model", "said"),
    [
        (Degrees(pp=2), {"zero_stage": 3}, LLAMA, "PP 2 with ZeRO-3: .* use zero_stage 0 or 1"),
        (Degrees(pp=2), {"zero_stage": 2}, LLAMA, "PP 2 with ZeRO-2"),
        (Degrees(dp=2), {"zero_stage": 4}, LLAMA, "ZeRO-4: the stages are 0 to 3"),
        (Degrees(dp=2), {"zero_stage": 0, "precision": "bf16"}, LLAMA, "use zero_stage 1"),
        (Degrees(pp=2, dp=2), {"overlap": True}, LLAMA, "would run exactly as without overlap"),
        (Degrees(), {"overlap": True}, LLAMA, "no communication to overlap"),
        (Degrees(tp=2), {"overlap": True}, LLAMA, "use sequence_parallel: true"),
        (
            Degrees(tp=2),
            {"sequence_parallel": True},
            replace(LLAMA, sequence_length=63),
            "cut in 2",
        ),
        (Degrees(dp=2), {"overlap": True, "zero_stage": 0}, LLAMA, "zero_stage 2 or 3"),
        (Degrees(dp=2), {"overlap": True, "precision": "bf16"}, LLAMA, "zero_stage 2 or 3"),
        (Degrees(tp=4), {}, LLAMA, "2 key and value heads"),
        (Degrees(tp=2), {}, replace(GPT, vocabulary_multiple=1), "another vocabulary_multiple"),
        (Degrees(pp=8), {}, LLAMA, "8 pipeline stages: llama-test has only 4 layers"),
        (
            Degrees(pp=2, stage_layers=(1, 2)),
            {},
            LLAMA,
            "2 stages with 3 layers, .* make them agree",
        ),
        (Degrees(pp=2, stage_layers=(4, 0)), {}, LLAMA, "each stage needs a layer"),
        (Degrees(virtual_stages=2), {}, LLAMA, "no pipeline to interleave"),
        (Degrees(pp=2, virtual_stages=2), {}, LLAMA, "no interleaved schedule; use backend: torch"),
        (Degrees(), {"compile": True}, LLAMA, "break up compiled layers; use backend: torch"),
        (
            Degrees(dp=2, ep=2),
            {"backend": "torch", "compile": True, "routing": "dropless"},
            MIXTRAL,
            "use routing: balanced, or compile: false",
        ),
        (
            Degrees(pp=2, virtual_stages=2),
            {"backend": "torch", "global_batch_size": 3},
            LLAMA,
            "whole rounds of PP micro-batches",
        ),
        (ZERO_BUBBLE, {**SPLIT, "backend": "deepspeed"}, LLAMA, "only 1F1B; use backend: torch"),
        (replace(ZERO_BUBBLE, pp=1), {**SPLIT, "overlap": False}, LLAMA, "there is no pipeline"),
        (ZERO_BUBBLE, {**SPLIT, "overlap": False}, LLAMA, "use overlap: true, or schedule: 1f1b"),
        (replace(ZERO_BUBBLE, tp=2), SPLIT_SEQUENCE, LLAMA, "repeat sums over its ranks; use tp 1"),
        (ZERO_BUBBLE, {**SPLIT, "routing": "balanced"}, MIXTRAL, "use a dense model"),
        (ZERO_BUBBLE, {**SPLIT, "recomputation": "full"}, LLAMA, "use recomputation: none"),
        (ZERO_BUBBLE, {**SPLIT, "compile": True}, LLAMA, "cannot split a compiled backward pass"),
        (ZERO_BUBBLE, {**SPLIT, "zero_stage": 2}, LLAMA, "use zero_stage 0 or 1"),
        (ZERO_BUBBLE, {**SPLIT, "workload": "lora", "lora_rank": 4}, LLAMA, "frozen weights"),
        (ZERO_BUBBLE, {**SPLIT, "global_batch_size": 3}, LLAMA, "3 micro-batches on PP 2"),
        (V_SHAPED, {**SPLIT, "global_batch_size": 2}, LLAMA, "2 · PP − 1 of them"),
        (replace(V_SHAPED, virtual_stages=1), SPLIT, LLAMA, "use virtual_stages: 2"),
        (Degrees(cp=2), {}, LLAMA, "CP 2: DeepSpeed's engine does not split sequences"),
        (Degrees(cp=3), SPLIT, LLAMA, "64 tokens cannot be cut in 6 chunks"),
        (Degrees(tp=2, cp=32), SPLIT_SEQUENCE, LLAMA, "64 tokens cannot be cut in 128 chunks"),
        (Degrees(cp=2), {**SPLIT, "routing": "balanced"}, MIXTRAL, "or a dense model"),
        (Degrees(dp=2, ep=2), {}, LLAMA, "llama-test has no experts"),
        (Degrees(dp=8, ep=8), {}, MIXTRAL, "mixtral-test has 4 experts"),
        (Degrees(tp=2, dp=1, ep=2), {}, MIXTRAL, "EP must divide DP"),
        (Degrees(dp=2, ep=2), {"zero_stage": 3}, MIXTRAL, "EP 2 with ZeRO-3"),
        (Degrees(), {**FP8, "backend": "deepspeed"}, LLAMA, "DeepSpeed's .* use backend: torch"),
        (Degrees(), {**FP8, "workload": "lora", "lora_rank": 4}, LLAMA, "use workload pretrain"),
        (
            *(Degrees(), {**FP8, "workload": "inference", "zero_stage": 0, "generated_tokens": 8}),
            *(LLAMA, "fp8 with workload inference: .* use workload pretrain"),
        ),
        (Degrees(), {**FP8, "routing": "balanced"}, MIXTRAL, "experts, .* use a dense model"),
        (Degrees(tp=2), FP8, LLAMA, "fp8 with TP 2: .* use tp 1"),
        (ZERO_BUBBLE, {**SPLIT, "precision": "fp8"}, LLAMA, "fp8 with schedule zero-bubble"),
        (Degrees(), FP8, replace(LLAMA, ffn_hidden_size=200), "200 feed-forward columns, .* 16"),
        (Degrees(), FP8, replace(LLAMA, sequence_length=72), "72 tokens in a micro-batch"),
    ],
)
def test_what_cannot_run_is_refused_with_a_remedy(degrees, changes, model, said):
    reason = refusal(degrees, replace(TRAINING, **changes), model)

    assert reason is not None
    assert re.search(said, reason)


def test_bf16_without_zero_runs_where_there_is_one_replica():
    training = replace(TRAINING, zero_stage=0, precision="bf16")

    assert refusal(Degrees(tp=2, pp=2), training, LLAMA) is None


def test_auto_takes_torch_for_fp8():
    training = replace(TRAINING, precision="fp8")

    assert with_backend(Degrees(dp=2), training, LLAMA, "auto").backend == "torch"


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_auto_takes_torch_where_deepspeed_cannot_cut_a_pipeline_further(zero_stage):
    training = replace(TRAINING, zero_stage=zero_stage)

    assert with_backend(Degrees(pp=2), training, LLAMA, "auto").backend == "torch"
    assert with_backend(Degrees(dp=2), training, LLAMA, "auto").backend == "deepspeed"
