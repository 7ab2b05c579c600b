"""What replicas exchange: how much, and in which precision. Counted, and worked out by hand."""

import pytest

from tests.training.cells import named

#: oneDNN and torch then use no instruction beyond AVX2, so that an x86 CPU has neither fp16 nor
#: bf16; other CPUs ignore it. DeepSpeed 0.19.8 heeds the precision that zero.Init is given only
#: where there is fp16
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

REDUCTION = {"deepspeed": "all-reduce", "torch": "reduce-scatter"}
#: a byte for each of layers' matrices, and two for norms, which come in the same message
BYTES = LAYERS + 4 * 128
#: gradients that are reduced, bytes that are gathered of layers, and other weights
FLOAT8 = {
    "torch fp8 tensorwise dp2 zero1": (ALL, BYTES, 2 * END + NORM),
    "torch fp8 tensorwise dp2 zero3": (2 * ALL, 4 * BYTES, 2 * (2 * END + END + NORM)),
}
#: of two ranks that are whole models, without what capabilities refuses
WHOLE_MODELS = {
    f"{backend} dp2 zero{stage} {precision}": (EXCHANGED[backend, stage], precision)
    for backend, stage in EXCHANGED
    for precision in ("fp32", "bf16")
    if (backend, stage, precision) != ("deepspeed", 0, "bf16")
}
#: what reduces gradients of adapters, and how many. Rank 4 in each of four layers: queries, keys
#: and values 64 + 128, what follows attention 64 + 64, gate and up 64 + 384, down 192 + 64
ADAPTERS = {
    "deepspeed lora dp2 zero1 bf16": ("all-reduce", 4 * 4 * 1024),
    "deepspeed lora dp2 zero3 bf16": ("reduce-scatter", 2 * 4 * 4 * 1024),
    "torch lora dp2 zero1 bf16": ("reduce-scatter", 4 * 4 * 1024),
    "torch lora dp2 zero3 bf16": ("reduce-scatter", 2 * 4 * 4 * 1024),
}
#: of four ranks
TENSORS, STAGES, EXPERTS = (
    [f"{backend} {layout} bf16" for backend in REDUCTION]
    for layout in ("tp2 dp2 zero3 sequence", "pp2 dp2 gpt", "dp4 ep2")
)
CELLS = {
    name: named(name) for name in (*WHOLE_MODELS, *FLOAT8, *ADAPTERS, *TENSORS, *STAGES, *EXPERTS)
}
pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", WHOLE_MODELS)
def test_replicas_reduce_in_fp32_and_gather_in_the_cells_precision(name, on_ranks):
    (reduction, reduced, gathered), precision = WHOLE_MODELS[name]
    expected = [["dp", reduction, "fp32", reduced]]
    if gathered:
        expected.append(["dp", "gather", precision, gathered])

    assert on_ranks("traffic", name, **AVX2) == [sorted(expected)] * 2


@pytest.mark.parametrize("name", FLOAT8)
def test_layers_with_a_scale_for_a_matrix_are_gathered_in_8_bits(name, on_ranks):
    reduced, of_layers, others = FLOAT8[name]
    expected = [
        ["dp", "gather", "bf16", others],
        ["dp", "gather", "torch.uint8", of_layers],
        ["dp", "reduce-scatter", "fp32", reduced],
    ]

    assert on_ranks("traffic", name) == [expected] * 2


@pytest.mark.parametrize("name", ADAPTERS)
def test_of_adapters_alone_gradients_are_reduced_in_fp32_too(name, on_ranks):
    reduction, reduced = ADAPTERS[name]
    for rank in on_ranks("traffic", name, **AVX2):
        assert [each for each in rank if each[1] != "gather"] == [
            ["dp", reduction, "fp32", reduced]
        ]
        assert {precision for _, kind, precision, _ in rank if kind == "gather"} == {"bf16"}


@pytest.mark.parametrize("name", TENSORS)
def test_tensor_parallel_ranks_exchange_activations_and_norms_gradients_in_bf16(name, on_ranks):
    for rank in on_ranks("traffic", name):
        assert {tuple(each[:3]) for each in rank} == {
            ("dp", "reduce-scatter", "fp32"),
            ("dp", "gather", "bf16"),
            ("tp", "gather", "bf16"),
            ("tp", "reduce-scatter", "bf16"),
            ("tp", "all-reduce", "bf16"),  # norms' gradients, of slices of the sequence
            ("tp", "all-reduce", "fp32"),  # the loss
        }


@pytest.mark.parametrize("name", STAGES)
def test_stages_send_activations_in_bf16_and_add_up_what_they_share_in_fp32(name, on_ranks):
    for rank in on_ranks("traffic", name):
        # DeepSpeed sends to neighbours in the group of all ranks, and broadcasts two losses.
        found = {tuple(each[1:3]) for each in rank if each[0] != "dp" and each[1] != "broadcast"}
        assert found == {("send", "bf16"), ("receive", "bf16"), ("all-reduce", "fp32")}
        assert {tuple(each[1:3]) for each in rank if each[0] == "dp"} == {
            (REDUCTION[name.split()[0]], "fp32"),
            ("gather", "bf16"),
        }


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_are_reduced_over_their_own_replicas_in_fp32(name, on_ranks):
    reduction = REDUCTION[name.split()[0]]
    for rank in on_ranks("traffic", name):
        assert {tuple(each[:3]) for each in rank} == {
            ("dp", reduction, "fp32"),
            ("dp", "gather", "bf16"),
            ("expert_dp", reduction, "fp32"),
            ("expert_dp", "gather", "bf16"),
            ("ep", "exchange", "bf16"),
            ("ep", "exchange", "torch.int64"),  # how many rows will come
        }
