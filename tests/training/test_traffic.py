"""What replicas exchange: how much, and in which precision. Counted, and worked out by hand."""

from __future__ import annotations

import pytest

from tests.training.cells import GPT, LLAMA, MIXTRAL, cell
from tests.training.ranks import launch
from workflow_lib.records import Degrees

#: oneDNN and torch then use no instruction beyond AVX2, so that an x86 CPU has neither fp16 nor
#: bf16; other CPUs ignore it
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
#: parameters: four layers of 49 280, of which 128 are in norms; embedding and head of 384 × 64
#: each; and the last norm
LAYERS, END, NORM = 4 * 49_280, 384 * 64, 64
ALL = LAYERS + 2 * END + NORM
NORMS = 4 * 128 + NORM


#: with FSDP2's ZeRO-3, for two passes of two micro-batches; head and last norm stay between passes
BOTH_PASSES = 2 * (2 * (LAYERS + END) + END + NORM)
#: with DeepSpeed's, which keeps so small a model between passes, and norms for the whole step
KEPT = 2 * (ALL - NORMS) + NORMS

#: backend and ZeRO stage → of a step with two micro-batches, what reduces gradients and for how
#: many, and how many weights are gathered
EXCHANGED = {
    ("deepspeed", 0): ("all-reduce", ALL, 0),
    ("deepspeed", 1): ("all-reduce", ALL, ALL),
    ("deepspeed", 2): ("all-reduce", 2 * ALL, ALL),
    ("deepspeed", 3): ("reduce-scatter", 2 * ALL, KEPT),
    ("torch", 0): ("all-reduce", ALL, 0),
    ("torch", 1): ("reduce-scatter", ALL, ALL),
    ("torch", 2): ("reduce-scatter", 2 * ALL, ALL),
    ("torch", 3): ("reduce-scatter", 2 * ALL, BOTH_PASSES),
}
LORA = {"workload": "lora", "lora_rank": 4, "precision": "bf16"}
BF16 = {"precision": "bf16"}

#: without what capabilities refuses
WHOLE_MODELS = [
    (backend, stage, precision)
    for backend, stage in EXCHANGED
    for precision in ("fp32", "bf16")
    if (backend, stage, precision) != ("deepspeed", 0, "bf16")
]
TWO_RANKS = {
    f"{backend} zero{stage} {precision}": cell(
        *(LLAMA, Degrees(dp=2)), backend=backend, zero_stage=stage, precision=precision
    )
    for backend, stage, precision in WHOLE_MODELS
} | {
    f"{backend} lora zero{stage}": cell(
        *(LLAMA, Degrees(dp=2)), backend=backend, zero_stage=stage, **LORA
    )
    for backend in ("deepspeed", "torch")
    for stage in (1, 3)
}
FOUR_RANKS = {
    f"{backend} {name}": cell(model, degrees, backend=backend, **options, **BF16)
    for backend in ("deepspeed", "torch")
    for name, model, degrees, options in (
        ("tp2 dp2", LLAMA, Degrees(tp=2, dp=2), {"zero_stage": 3, "sequence_parallel": True}),
        ("pp2 dp2", GPT, Degrees(pp=2, dp=2), {}),
        ("dp4 ep2", MIXTRAL, Degrees(dp=4, ep=2), {"routing": "dropless"}),
    )
}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What each rank counted, by cell of TWO_RANKS, on a CPU without fp16.

    DeepSpeed 0.19.8 heeds the precision that zero.Init is given only where there is fp16.
    """
    results = launch("traffic", TWO_RANKS, tmp_path_factory.mktemp("two"), environment=AVX2)
    assert isinstance(results, dict), results
    return results


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory):
    """What each rank counted, by cell of FOUR_RANKS."""
    results = launch("traffic", FOUR_RANKS, tmp_path_factory.mktemp("four"))
    assert isinstance(results, dict), results
    return results


@pytest.mark.long
@pytest.mark.parametrize(("backend", "stage", "precision"), WHOLE_MODELS)
def test_replicas_reduce_gradients_in_fp32_and_gather_weights_in_the_cells_precision(
    backend, stage, precision, two_ranks
):
    reduction, reduced, gathered = EXCHANGED[backend, stage]

    expected = [["dp", reduction, "fp32", reduced]]
    if gathered:
        expected.append(["dp", "gather", precision, gathered])

    assert two_ranks[f"{backend} zero{stage} {precision}"] == [sorted(expected)] * 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "reduction", "reduced"),
    [
        # Rank 4 in each of four layers: queries, keys and values 64 + 128, what follows attention
        # 64 + 64, gate and up 64 + 384, down 192 + 64.
        ("deepspeed lora zero1", "all-reduce", 4 * 4 * 1024),
        ("deepspeed lora zero3", "reduce-scatter", 2 * 4 * 4 * 1024),
        ("torch lora zero1", "reduce-scatter", 4 * 4 * 1024),
        ("torch lora zero3", "reduce-scatter", 2 * 4 * 4 * 1024),
    ],
)
def test_of_adapters_alone_gradients_are_reduced_in_fp32_too(name, reduction, reduced, two_ranks):
    for rank in two_ranks[name]:
        assert [each for each in rank if each[1] != "gather"] == [
            ["dp", reduction, "fp32", reduced]
        ]
        assert {precision for _, kind, precision, _ in rank if kind == "gather"} == {"bf16"}


REDUCTION = {"deepspeed": "all-reduce", "torch": "reduce-scatter"}


@pytest.mark.long
@pytest.mark.parametrize("backend", ["deepspeed", "torch"])
def test_tensor_parallel_ranks_exchange_activations_and_norms_gradients_in_bf16(
    backend, four_ranks
):
    for rank in four_ranks[f"{backend} tp2 dp2"]:
        assert {tuple(each[:3]) for each in rank} == {
            ("dp", "reduce-scatter", "fp32"),
            ("dp", "gather", "bf16"),
            ("tp", "gather", "bf16"),
            ("tp", "reduce-scatter", "bf16"),
            ("tp", "all-reduce", "bf16"),  # norms' gradients, of slices of the sequence
            ("tp", "all-reduce", "fp32"),  # the loss
        }


@pytest.mark.long
@pytest.mark.parametrize("backend", ["deepspeed", "torch"])
def test_stages_send_activations_in_bf16_and_add_up_what_they_share_in_fp32(backend, four_ranks):
    for rank in four_ranks[f"{backend} pp2 dp2"]:
        # DeepSpeed sends to neighbours in the group of all ranks, and broadcasts two losses.
        found = {tuple(each[1:3]) for each in rank if each[0] != "dp" and each[1] != "broadcast"}
        assert found == {("send", "bf16"), ("receive", "bf16"), ("all-reduce", "fp32")}
        assert {tuple(each[1:3]) for each in rank if each[0] == "dp"} == {
            (REDUCTION[backend], "fp32"),
            ("gather", "bf16"),
        }


@pytest.mark.long
@pytest.mark.parametrize("backend", ["deepspeed", "torch"])
def test_experts_are_reduced_over_their_own_replicas_in_fp32(backend, four_ranks):
    for rank in four_ranks[f"{backend} dp4 ep2"]:
        assert {tuple(each[:3]) for each in rank} == {
            ("dp", REDUCTION[backend], "fp32"),
            ("dp", "gather", "bf16"),
            ("expert_dp", REDUCTION[backend], "fp32"),
            ("expert_dp", "gather", "bf16"),
            ("ep", "exchange", "bf16"),
            ("ep", "exchange", "torch.int64"),  # how many rows will come
        }
