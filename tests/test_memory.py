"""The memory estimate against peaks that were measured, and its terms counted by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests import shipped
from tests.made_cells import TRAINING
from tests.training import orders
from workflow_lib import activation_memory, memory
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model

ROOT = Path(__file__).parents[1]

# One host of 4×H200, 2026-11-21: torch 2.11, DeepSpeed 0.19.8, driver 580.159.04, micro-batch 1,
# bf16, by research/engine_on_gpus.py. The peaks, in GB, are torch.cuda.max_memory_allocated of
# the fullest rank, so they leave out the CUDA context. DeepSpeed then reduced gradients in bf16; in
# fp32 its bucket of 500 million in ZeRO-3 takes 1 GB more, which is added here, not measured.
IN_FP32 = 1.0
TORCH = {"backend": "torch"}
OVERLAP = {"overlap": True}
FULL = {"recomputation": "full"}
BALANCED = {"routing": "balanced", **FULL}
# Two H200 of another host, 2026-11-22: 4 micro-batches, or sequences, of each GPU.
TWO = {**TORCH, "global_batch_size": 8}
CUT = {**TWO, **FULL, **OVERLAP, "zero_stage": 3}
BY_WORK, FOUR_CHUNKS = Degrees(pp=2, stage_layers=(17, 15)), (8, 9, 9, 6)
ZERO_BUBBLE, V = {"schedule": "zero-bubble"}, {"schedule": "zero-bubble-v"}
TWICE = {"virtual_stages": 2}
MEASURED = [
    ("llama3-8b", 8, Degrees(dp=4), {"zero_stage": 3, **TORCH}, 26.321),
    ("llama3-8b", 8, Degrees(dp=4), {"zero_stage": 3, **TORCH, **OVERLAP}, 26.246),
    ("llama3-8b", 8, Degrees(dp=4), TORCH, 39.172),
    ("llama3-8b", 8, Degrees(dp=4), {"zero_stage": 3}, 29.631 + IN_FP32),
    ("llama3-8b", 8, Degrees(dp=4), {"zero_stage": 3, **OVERLAP}, 29.631 + IN_FP32),
    ("llama3-8b", 8, Degrees(tp=4), {**TORCH, **OVERLAP}, 16.497),
    ("llama3-8b", 32, Degrees(dp=4), {**TORCH, **OVERLAP, "compile": True}, 113.161),
    ("gpt3-175b", 8, Degrees(tp=4), FULL, 83.765),
    ("gpt3-175b", 8, Degrees(tp=4), {**TORCH, **OVERLAP}, 72.041),
    ("gpt3-175b", 8, Degrees(tp=2, pp=2), FULL, 87.114),
    ("gpt3-175b", 8, Degrees(pp=4), {**TORCH, **OVERLAP, **FULL}, 85.442),
    ("gpt3-175b", 8, Degrees(dp=4), {"zero_stage": 3, **TORCH, **FULL}, 81.981),
    ("llama3-70b", 8, Degrees(tp=4), FULL, 49.283),
    ("llama3-70b", 8, Degrees(tp=2, pp=2), FULL, 51.719),
    ("llama3-70b", 8, Degrees(pp=4), FULL, 65.713),
    ("llama3-70b", 8, Degrees(dp=4), {"zero_stage": 3, **FULL}, 49.517 + IN_FP32),
    ("mixtral-8x7b", 8, Degrees(dp=4, ep=4), BALANCED, 68.658),
    ("mixtral-8x7b", 8, Degrees(dp=4, ep=4), {**TORCH, **BALANCED, "routing": "dropless"}, 59.087),
    ("mixtral-8x7b", 8, Degrees(tp=2, dp=2, ep=2), BALANCED, 66.268),
    ("llama3-8b", 8, Degrees(dp=2), CUT, 28.900),
    ("llama3-8b", 8, Degrees(cp=2), CUT, 27.410),
    ("llama3-8b-32k", 8, Degrees(dp=2), CUT, 43.541),
    ("llama3-8b", 32, Degrees(pp=2), TWO, 110.618),
    ("llama3-8b", 32, BY_WORK, TWO, 116.828),
    (
        *("llama3-8b", 32, replace(BY_WORK, stage_layers=FOUR_CHUNKS, **TWICE)),
        *({**TWO, **OVERLAP}, 127.104),
    ),
    ("llama3-8b", 32, replace(BY_WORK, **ZERO_BUBBLE), {**TWO, **OVERLAP}, 135.828),
    (
        *("llama3-8b", 32, replace(BY_WORK, stage_layers=FOUR_CHUNKS, **TWICE, **ZERO_BUBBLE)),
        *({**TWO, **OVERLAP}, 127.265),
    ),
    (
        *("llama3-8b", 32, replace(BY_WORK, stage_layers=(9, 9, 8, 6), **TWICE, **V)),
        *({**TWO, **OVERLAP}, 127.013),
    ),
]
#: what torch called the GPU's total capacity, and two cells that ran out of it
CAPACITY = 139.8 * 2**30
TOO_LARGE = [
    ("llama3-70b", 34, Degrees(tp=4), FULL),
    ("llama3-8b", 32, Degrees(dp=4), {**TORCH, "micro_batch_size": 2}),
]
MODEL = Model("llama3-8b-8l", "llama", 8, 4096, 14336, 32, 8, 8192, 128256)
HEAD = 4096 * 128256
# Sizes with one digit each, of which sums can be followed.
TINY = Model("tiny", "llama", 4, 4, 8, 2, 1, 8, 10)


def training(zero_stage=1, **changes):
    plain = {"recomputation": "full", "global_batch_size": 16}
    return replace(TRAINING, zero_stage=zero_stage, **(plain | changes))


def of_study(name, layers, degrees, options):
    model = replace(shipped.study().models[name].record(name), layers=layers)
    plain = {"recomputation": "none", "sequence_parallel": degrees.tp > 1}
    return memory.estimate(model, degrees, training(**{**plain, **options}))


@pytest.mark.parametrize(("name", "layers", "degrees", "options", "measured_gb"), MEASURED)
def test_the_estimate_is_within_six_percent(name, layers, degrees, options, measured_gb):
    estimate = of_study(name, layers, degrees, options)
    assert estimate.allocated / 1e9 == pytest.approx(measured_gb, rel=0.06)
    assert estimate.total < CAPACITY


# The driver's count of the fullest GPU, lowest and highest of all runs, in GB, by layout: the runs
# of evidence/*.zip whose memory_used_peak_bytes is not a lower bound, on one or two H100 or H200,
# by the engine of before 29 November 2026, and by that of today.
COMPILED = {**TORCH, "compile": True}
RECOMPUTED = {**COMPILED, **FULL}
PAIR = {**COMPILED, "global_batch_size": 8}
DROPLESS = {**TORCH, "routing": "dropless"}
GENERATED = {**TORCH, "zero_stage": 0, "workload": "inference"}
DRIVER = [
    (4, {}, COMPILED, (56.81, 56.82)),
    (4, {}, {**COMPILED, "micro_batch_size": 2}, (66.84, 66.84)),
    (4, {}, {**COMPILED, "micro_batch_size": 2, "precision": "fp8"}, (64.01, 64.01)),
    (4, {}, {**COMPILED, "micro_batch_size": 4}, (84.87, 84.91)),
    (4, {}, {**COMPILED, "global_batch_size": 1}, (50.12, 50.12)),
    (4, {}, RECOMPUTED, (52.16, 52.17)),
    (4, {}, {**RECOMPUTED, "micro_batch_size": 4}, (69.60, 69.60)),
    (4, {}, {**COMPILED, "workload": "lora", "lora_rank": 16}, (22.14, 22.21)),
    # On two emulated nodes, by sockets.
    (4, {"dp": 2}, COMPILED, (41.81, 41.87)),
    (4, {"pp": 2}, COMPILED, (33.91, 34.89)),
    (8, {"dp": 2}, {**PAIR, **OVERLAP}, (59.89, 59.89)),
    (8, {"dp": 2}, {**PAIR, **OVERLAP, "zero_stage": 3}, (47.73, 47.73)),
    (8, {"pp": 2}, PAIR, (49.25, 49.25)),
    (8, {"pp": 2, "stage_layers": (5, 3)}, PAIR, (56.33, 56.42)),
    (8, {"tp": 2}, PAIR, (41.40, 41.40)),
    (32, {"dp": 2}, {**PAIR, **OVERLAP, "zero_stage": 3}, (118.96, 118.96)),
    (32, {"pp": 2}, PAIR, (133.81, 134.78)),
    (32, {"pp": 2, "stage_layers": (17, 15)}, PAIR, (142.12, 142.12)),
    (32, {"tp": 2}, PAIR, (114.77, 114.77)),
    (32, {"tp": 2}, {**PAIR, **OVERLAP}, (112.80, 112.80)),
    *(
        (32, {}, {**GENERATED, **batch, "generated_tokens": tokens}, used)
        for batch, tokens, used in (
            ({"global_batch_size": 1}, 768, (22.41, 22.41)),
            ({"global_batch_size": 1}, 1536, (22.41, 22.45)),
            ({"micro_batch_size": 8, "global_batch_size": 8}, 768, (37.49, 37.49)),
            ({"micro_batch_size": 8, "global_batch_size": 8}, 1536, (36.57, 36.60)),
        )
    ),
    ("mixtral-8x7b", {"dp": 2, "ep": 2}, DROPLESS, (149.76, 150.10)),
    ("mixtral-8x7b", {"dp": 2, "ep": 2}, {**DROPLESS, "micro_batch_size": 2}, (150.09, 150.10)),
    ("mixtral-8x7b", {"pp": 2}, DROPLESS, (149.63, 150.05)),
    ("mixtral-8x7b", {"tp": 2}, DROPLESS, (144.11, 144.11)),
]


TODAY = [
    ({**PAIR, **OVERLAP}, 148.30),
    ({**PAIR, **OVERLAP, "precision": "fp8", "fp8_recipe": "tensorwise"}, 135.89),
    ({**PAIR, **OVERLAP, "zero_stage": 3}, 118.96),
    (
        {**PAIR, **OVERLAP, "zero_stage": 3, "precision": "fp8", "fp8_recipe": "tensorwise"},
        112.01,
    ),
]


@pytest.mark.parametrize(("options", "used_gb"), TODAY)
def test_the_estimate_is_within_four_percent_of_what_todays_engine_used(options, used_gb):
    estimate = of_study("llama3-8b", 32, Degrees(dp=2), options)
    assert estimate.used(CAPACITY) / 1e9 == pytest.approx(used_gb, rel=0.04)


def by_the_engine_before(estimate, model, options):
    """The estimate for an engine whose slices of gradients, of the size of the fp32 weights, took
    memory of their own where the streams of ends do now."""
    if options.get("zero_stage", 1) >= 2 or options.get("workload", "pretrain") != "pretrain":
        return estimate
    end = 6 * model.padded_vocabulary_size * model.hidden_size
    return replace(estimate, cached=estimate.cached + estimate.weights - end)


@pytest.mark.parametrize(("of", "degrees", "options", "used_gb"), DRIVER)
def test_the_estimate_is_within_five_percent_of_the_drivers(of, degrees, options, used_gb):
    name, layers = ("llama3-8b", of) if isinstance(of, int) else (of, 8)
    model = shipped.study().models[name].record(name)
    estimate = of_study(name, layers, Degrees(**degrees), options)
    estimate = by_the_engine_before(estimate, model, options)
    for used in used_gb:
        assert estimate.used(CAPACITY) / 1e9 == pytest.approx(used, rel=0.05)
    # What runs is never refused, and what is recommended leaves room for the estimate's error.
    assert estimate.fits(CAPACITY) == ("yes" if name == "llama3-8b" else "perhaps")


# One H100 of 85.0 GB, 2026-11-25, after the constants were set.
QWEN = Model("qwen2.5-7b-8-layers", "llama", 8, 3584, 18944, 28, 4, 8192, 152064, qkv_bias=True)


@pytest.mark.parametrize(
    ("model", "options", "used_gb"),
    [
        (QWEN, {"recomputation": "none", "compile": True, "global_batch_size": 4}, 84.72),
        (QWEN, {"global_batch_size": 4}, 75.84),
        (MODEL, {"zero_stage": 3, "recomputation": "none", "global_batch_size": 2}, 67.01),
    ],
)
def test_layouts_that_set_no_constant_are_within_five_percent(model, options, used_gb):
    estimate = memory.estimate(model, Degrees(), training(**TORCH, **options))
    estimate = by_the_engine_before(estimate, model, options)
    assert estimate.used(85.0e9) / 1e9 == pytest.approx(used_gb, rel=0.05)


def test_a_layout_that_ran_out_of_memory_was_not_recommended():
    model = replace(shipped.study().models["llama3-70b"].record("llama3-70b"), layers=2)
    options = {**COMPILED, "recomputation": "selective", "global_batch_size": 4}
    assert memory.estimate(model, Degrees(), training(**options)).fits(85.0e9) == "perhaps"


def test_the_driver_counts_the_runtime_and_what_the_allocator_keeps():
    estimate = memory.MemoryEstimate(50e9, 20e9, 30e9, runtime=3e9, cached=17e9)
    assert estimate.total == 103e9
    # A GPU of 110 GB cannot show more than it has.
    assert estimate.used(None) == estimate.used(150 * 10**9) == 120e9
    assert estimate.used(110 * 10**9) == 110e9


def test_what_fits_has_room_for_the_estimates_error():
    estimate = memory.MemoryEstimate(50e9, 20e9, 30e9, runtime=5e9, cached=15e9)
    # 120 GB and 5 % are 126 GB. Without the kept 15 GB, 105 GB are 5 % more than 100 GB.
    borders = {127e9: "yes", 126e9: "yes", 125e9: "perhaps", 100e9: "perhaps", 99e9: "no"}
    assert {size: estimate.fits(size) for size in borders} == borders


def test_what_fits_is_judged_by_the_rank_that_needs_the_most(monkeypatch):
    # The driver counts 100 GB on rank 0, which could do with 60. Rank 1 needs 85 in any case.
    ranks = [
        memory.MemoryEstimate(57e9, 0, 0, runtime=3e9, cached=40e9),
        memory.MemoryEstimate(82e9, 0, 0, runtime=3e9, cached=5e9),
    ]
    monkeypatch.setattr(memory, "_training", lambda *of_rank: ranks[of_rank[-1]])
    estimate = memory.estimate(MODEL, Degrees(pp=2), training())
    # 85 GB less 5 % are 80.95; 100 GB and 5 % are 105.
    borders = {80e9: "no", 82e9: "perhaps", 104e9: "perhaps", 105e9: "yes"}
    assert {size: estimate.fits(size) for size in borders} == borders
    assert (estimate.total, estimate.with_room) == (85e9, 100e9)
    assert estimate.arithmetic() == "weights 82.0 + runtime 3.0"


def test_what_streams_let_go_stays_with_the_allocator():
    def cached(stage, **options):
        estimate = memory.estimate(MODEL, Degrees(dp=2), training(stage, **options))
        return estimate.cached - 1.5e9 - 0.2 * max(estimate.working, estimate.logits)

    # An end is gathered in bf16 and reduced in fp32.
    ends = 6 * 128256 * 4096
    for stage in (1, 3):
        assert cached(stage, backend="torch") == pytest.approx(ends)
    alone, overlapped = [
        [cached(stage, backend="deepspeed", **options) for stage in (1, 2, 3)]
        for options in ({}, OVERLAP)
    ]
    assert alone == pytest.approx([0, 0, ends], abs=1)
    # ZeRO-3: 10⁹ weights of 2 B, and a bucket of half as many gradients of 4 B and its copy.
    assert overlapped[1:] == pytest.approx([ends, ends + 2e9 + 2e9 + 2e9], abs=1)


# Two H100 and two H200, the highest of three runs each, in GB.
DEEPSPEED = [
    (8, {"zero_stage": 1}, 57.49),
    (8, {"zero_stage": 2}, 47.63),
    (8, {"zero_stage": 3}, 51.06),
    (32, {"zero_stage": 1, **FULL}, 127.29),
    (32, {"zero_stage": 2, **OVERLAP}, 133.16),
    (32, {"zero_stage": 3, **OVERLAP}, 136.53),
]


@pytest.mark.parametrize(("layers", "options", "used_gb"), DEEPSPEED)
def test_the_estimate_is_within_four_percent_of_what_deepspeed_used(layers, options, used_gb):
    options = {"backend": "deepspeed", "global_batch_size": 8, **options}
    estimate = of_study("llama3-8b", layers, Degrees(dp=2), options)
    assert estimate.used(CAPACITY) / 1e9 == pytest.approx(used_gb, rel=0.04)


# In five runs of Llama 3 8B on 4×H200 the driver counted 7 to 19 GB more than torch allocated.
@pytest.mark.parametrize(
    ("degrees", "options"),
    [(Degrees(dp=4), TORCH), (Degrees(dp=4), {"zero_stage": 3}), (Degrees(tp=4), TORCH)],
)
def test_what_is_kept_on_top_is_of_the_size_that_was_seen(degrees, options):
    estimate = of_study("llama3-8b", 32, degrees, options)
    model = shipped.study().models["llama3-8b"].record("llama3-8b")
    estimate = by_the_engine_before(estimate, model, options)
    assert 7e9 < estimate.used(None) - estimate.allocated < 19e9


@pytest.mark.parametrize(("name", "layers", "degrees", "options"), TOO_LARGE)
def test_what_ran_out_of_memory_was_estimated_to(name, layers, degrees, options):
    assert of_study(name, layers, degrees, options).total > CAPACITY


def test_the_states_of_a_single_gpu_are_counted_by_hand():
    tiny = replace(TINY, layers=1, kv_heads=2)
    # Attention 64, feed-forward 96, two norms 8; embedding and head 40 each, the final norm 4.
    parameters = 64 + 96 + 8 + 80 + 4
    estimate = memory.estimate(tiny, Degrees(), training(zero_stage=0, precision="fp32"))
    assert (estimate.weights, estimate.gradients) == (4 * parameters, 4 * parameters)
    assert estimate.optimizer == 8 * parameters
    # One layer's input, 8 tokens × 4 × 4 B. The layer being recomputed has 4 hidden, queries, keys,
    # values and output (4 each), gate, up and their product (8 each), less that input; and the
    # gradients of the last three, of the feed-forward part's input and of the layer's.
    assert estimate.activations == 8 * 4 * 4
    assert estimate.working == 8 * 4 * ((16 + 16 + 24 - 4) + (24 + 8))
    # The logits, their gradient, and all of them in fp32 besides.
    assert estimate.logits == 8 * 10 * (4 + 4 + 4)


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"),
    [(0, 2, 6, 12), (1, 2, 6, 3), (2, 2, 1, 3), (3, 0.5, 1, 3)],
)
def test_zero_divides_the_optimizer_first(stage, weights, gradients, optimizer):
    estimate = memory.estimate(MODEL, Degrees(dp=4), training(zero_stage=stage))
    parameters = 8 * 218112000 + 2 * 128256 * 4096 + 4096
    assert estimate.weights == weights * parameters
    assert estimate.gradients == gradients * parameters
    assert estimate.optimizer == optimizer * parameters


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"),
    # Cut from ZeRO-1 on are fp32 weights and moments; the sums over micro-batches only from 2 on.
    [(0, 4, 4, 8), (1, 1, 4, 2), (2, 1, 1, 2), (3, 1, 1, 2)],
)
def test_torch_cuts_fp32_weights(stage, weights, gradients, optimizer):
    estimate = memory.estimate(MODEL, Degrees(dp=4), training(zero_stage=stage, backend="torch"))
    parameters = 8 * 218112000 + 2 * 128256 * 4096 + 4096
    assert estimate.weights == weights * parameters
    assert estimate.gradients == gradients * parameters
    assert estimate.optimizer == optimizer * parameters
    # bf16 weights to compute with: all, or two layers' and the head's.
    gathered = 2 * 218112000 + 128256 * 4096 if stage == 3 else parameters
    assert estimate.communication == 2 * gathered


@pytest.mark.parametrize("stage", [1, 3])
def test_layers_with_a_scale_for_a_matrix_are_gathered_as_bytes(stage):
    fp8 = training(stage, backend="torch", precision="fp8", fp8_recipe="tensorwise")
    ends = 128256 * 4096
    expected = 2 * 218112000 + 2 * ends if stage == 3 else 8 * 218112000 + 2 * (2 * ends + 4096)
    assert memory.estimate(MODEL, Degrees(dp=4), fp8).communication == expected


@pytest.mark.parametrize(
    ("stage", "options", "communication", "passing"),
    [
        # A bucket of fp32, beside 10⁹ gathered weights of 2 B; and a copy of it to reduce-scatter.
        (3, {}, 2e9 + 4 * 5e8, 4 * 5e8),
        (3, OVERLAP, 2e9 + 4 * 5e8, 4 * 5e8),
        (3, {"precision": "fp32"}, 4e9 + 4 * 5e8, 4 * 5e8),
        # Buckets of gradients as they come, two with overlap; a copy, which bf16 ones have once
        # more in fp32. The largest, the head's, fits.
        (2, {}, 2 * HEAD, (2 + 4) * HEAD),
        (2, OVERLAP, 2 * 2 * HEAD, (2 + 4) * HEAD),
        (2, {"precision": "fp32"}, 4 * HEAD, 4 * HEAD),
        (1, {"precision": "fp32"}, 4 * 5e8, 4 * 5e8),
        # The sums over micro-batches are reduced where they are.
        (1, {}, 0, 0),
    ],
)
def test_deepspeed_reduces_gradients_from_buckets(stage, options, communication, passing):
    def working(degrees, **changes):
        return memory.estimate(MODEL, degrees, training(stage, **options, **changes)).working

    cell = training(stage, **options)
    assert memory.estimate(MODEL, Degrees(dp=4), cell).communication == communication
    # Adapters, 1 114 112 in each of eight layers, are far below a bucket.
    adapters = {"workload": "lora", "lora_rank": 16}
    copied = passing / (HEAD if stage == 2 else 5e8) * 8 * 16 * (10240 + 8192 + 32768 + 18432)
    assert working(Degrees(dp=4)) - working(Degrees(dp=4), **adapters) == passing - copied


def test_one_micro_batch_leaves_no_whole_sum_of_gradients():
    def gradients(global_batch_size):
        cell = training(backend="torch", global_batch_size=global_batch_size)
        return memory.estimate(MODEL, Degrees(dp=4), cell).gradients

    assert gradients(4) == 0 < gradients(8)


def test_the_fullest_stage_need_not_be_at_an_end():
    uneven = Degrees(pp=4, stage_layers=(1, 1, 5, 1))
    even = replace(MODEL, vocabulary_size=128, layers=8)
    fullest = memory.estimate(even, uneven, training())
    # Attention and three matrices, of five layers: more than one layer and an end of 128 × 4096.
    assert fullest.weights == 2 * 5 * 218112000


@pytest.mark.parametrize(
    ("degrees", "micro_batches", "rank", "expected"),
    [
        (Degrees(pp=4), 8, 0, [4]),
        (Degrees(pp=4), 8, 3, [1]),
        (Degrees(pp=4), 2, 0, [2]),
        # 2·3 + 1·4 = 10 warm up and one is under way: micro-batches 0–3 through chunk 0, 0–3
        # through chunk 1, 4–6 through chunk 0.
        (Degrees(pp=4, virtual_stages=2), 8, 0, [7, 4]),
        (Degrees(pp=4, virtual_stages=2), 8, 3, [4, 1]),
        (Degrees(pp=2, virtual_stages=3), 2, 0, [2, 2, 2]),
    ],
)
def test_micro_batches_in_flight_are_counted_by_hand(degrees, micro_batches, rank, expected):
    assert activation_memory.in_flight(degrees, micro_batches, rank) == expected


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("1f1b", 1), ("zero-bubble", 1), ("zero-bubble", 2), ("zero-bubble-v", 2)],
)
def test_as_many_are_in_flight_as_the_schedule_keeps(pp, schedule, chunks):
    degrees = Degrees(pp=pp, schedule=schedule, virtual_stages=chunks)
    ran = orders.run(degrees, 3 * pp)

    for rank in range(pp):
        assert sum(activation_memory.in_flight(degrees, 3 * pp, rank)) == ran.kept_at_once[rank]
        assert activation_memory.deferred(degrees, rank) == ran.deferred[rank]


def test_a_context_parallel_rank_keeps_its_tokens_and_all_keys_and_values():
    # Of half the tokens two norms' inputs and outputs 4 · 4096, queries and attention's result
    # 2 · 4096 and the gate's 3 · 14336; of all tokens keys and values, 2 · 1024. Two bytes each.
    bare = training(backend="torch", recomputation="none")
    whole = memory.estimate(MODEL, Degrees(cp=2), bare)
    halves = 4096 * (6 * 4096 + 3 * 14336 + 2 * 2 * 1024)
    assert whole.activations == MODEL.layers * 2 * halves
    # Its weights are cut as over two replicas, and its logits are of half the tokens.
    other = memory.estimate(MODEL, Degrees(dp=2), bare)
    assert (whole.weights, whole.optimizer) == (other.weights, other.optimizer)
    assert whole.logits < other.logits


def test_interleaving_costs_activations():
    # On the second rank, which exchanges with both neighbours, 2·2 + 4 + 1 chunks of one layer
    # against 3 of two.
    model = replace(MODEL, vocabulary_size=128)
    plain = memory.estimate(model, Degrees(pp=4), training(backend="torch"))
    interleaved = memory.estimate(model, Degrees(pp=4, virtual_stages=2), training(backend="torch"))
    assert interleaved.activations / plain.activations == 9 / (3 * 2)


@pytest.mark.parametrize(
    ("changes", "elements"),
    [
        # Two norms' inputs and outputs 16; by half: queries, keys, values and attention's result
        # 16, gate, up and product 24.
        ({"recomputation": "none"}, 16 + 40 / 2),
        ({"recomputation": "none", "sequence_parallel": True}, (16 + 40) / 2),
        # The input 4; by half the same 16, gate and up 16; two products, 4 each, before and after
        # they are summed, or summed to slices.
        ({"recomputation": "selective"}, 4 + 16 + 32 / 2),
        ({"recomputation": "selective", "sequence_parallel": True}, (4 + 8 + 32) / 2),
        ({"recomputation": "full"}, 4),
        ({"recomputation": "full", "sequence_parallel": True}, 4 / 2),
    ],
)
def test_what_a_layer_keeps_is_counted_by_hand(changes, elements):
    model = replace(TINY, layers=1, kv_heads=2)
    estimate = memory.estimate(model, Degrees(tp=2), training(**changes))
    assert estimate.activations == 2 * 8 * elements


def test_an_expert_parallel_rank_is_given_room_for_uneven_routing_only():
    model = Model("moe", "mixtral", 1, 4, 8, 2, 2, 8, 10, 1, 4, 2)

    def kept(routing, **degrees):
        cell = training(recomputation="none", routing=routing)
        return memory.estimate(model, Degrees(**degrees), cell).activations / (2 * 8)

    # Four hidden, queries, keys, values and attention's result; two rows of 24 inside, 8 outside.
    balanced = 16 + 16 + 2 * (24 + 8)
    assert kept("balanced", dp=2, ep=2) == kept("dropless", dp=2) == balanced
    assert kept("dropless", dp=2, ep=2) == 32 + 2 * 1.25 * (24 + 8)


def test_a_tied_head_takes_no_memory_but_on_another_stage():
    tied = replace(MODEL, tied_embeddings=True)
    untied, one = memory.estimate(MODEL, Degrees(), training()), 128256 * 4096
    assert memory.estimate(tied, Degrees(), training()).weights == untied.weights - 2 * one
    # The last stage has a copy.
    on_two = memory.estimate(MODEL, Degrees(pp=2), training()).weights
    assert memory.estimate(tied, Degrees(pp=2), training()).weights == on_two


@pytest.mark.parametrize("family", ["gpt", "neox", "llama", "mixtral", "qwen3"])
@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
def test_a_layer_keeps_what_is_estimated(family, recomputation, monkeypatch):
    torch = pytest.importorskip("torch")
    from tests.training.kept import kept_bytes
    from workflow_lib.trainers.native.mesh import single_process
    from workflow_lib.trainers.native.model import TransformerLayer, parts
    from workflow_lib.trainers.native.weights import Weights

    class Norm(torch.autograd.Function):
        """RMSNorm as the CUDA kernel does it: on a CPU it is made of many operators."""

        @staticmethod
        def forward(context, x, weight):
            context.save_for_backward(x, weight)
            normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
            return normed if weight is None else normed * weight

    monkeypatch.setattr(
        "torch.nn.functional.rms_norm", lambda x, _, weight, __: Norm.apply(x, weight)
    )
    experts = (4, 2) if family == "mixtral" else (0, 0)
    kind, kv_heads = "llama" if family == "qwen3" else family, 4 if family in ("gpt", "neox") else 2
    model = Model(family, kind, 1, 256, 768, 4, kv_heads, 256, 64, 1, *experts)
    if family == "qwen3":
        model = replace(model, head_dimension=96, qk_norm=True)
    routing = "dropless" if family == "mixtral" else None
    cell = training(recomputation=recomputation, precision="fp32", routing=routing)
    weights = Weights(single_process(torch.device("cpu")), 1, torch.float32)
    (part,) = (each for each in parts(model, weights, cell) if each.kind is TransformerLayer)
    x = torch.randn(1, 256, 256, requires_grad=True)
    measured = x.nbytes + kept_bytes(part.build(), x)
    # Besides there are indices, and a number for each token and head or norm.
    assert measured == pytest.approx(activation_memory.Layer(model, Degrees(), cell).kept, rel=0.02)


def test_adapters_leave_the_weights_without_states():
    lora = training(workload="lora", lora_rank=16)
    estimate = memory.estimate(MODEL, Degrees(), lora)
    parameters = 8 * 218112000 + 2 * 128256 * 4096 + 4096
    # Rank 16: joined 4096 + 6144, output 8192, gate and up 4096 + 28672, down 14336 + 4096.
    adapters = 8 * 16 * (10240 + 8192 + 32768 + 18432)
    assert estimate.weights == 2 * (parameters + adapters)
    assert (estimate.gradients, estimate.optimizer) == (6 * adapters, 12 * adapters)


def test_generation_keeps_keys_and_values_instead():
    generates = {"workload": "inference", "generated_tokens": 128, "micro_batch_size": 4}
    cell = training(0, recomputation="none", backend="torch", **generates)
    estimate = memory.estimate(MODEL, Degrees(), cell)
    # 8 layers, keys and values of 8 heads of 128, all 16 sequences of 8192 tokens, 2 B.
    assert estimate.cache == 8 * 2 * 1024 * 16 * 8192 * 2
    assert estimate.weights == 2 * (8 * 218112000 + 2 * 128256 * 4096 + 4096)
    assert (estimate.gradients, estimate.optimizer, estimate.activations) == (0, 0, 0)


def test_torchs_stages_hold_what_they_receive_of_a_whole_step():
    one = 8192 * 4096 * 2
    torch = memory.estimate(MODEL, Degrees(pp=2), training(backend="torch"))
    # 16 micro-batches: the first stage's gradients, or the last one's activations.
    assert torch.pipeline == 16 * one
    assert memory.estimate(MODEL, Degrees(pp=2), training()).pipeline == 2 * one


def test_the_loss_is_counted_as_it_is_written():
    cross_entropy = pytest.importorskip("workflow_lib.trainers.native.cross_entropy")
    assert activation_memory.FP32_LOGITS == cross_entropy.FP32_LOGITS


def test_deepspeed_copies_the_gradients_of_a_step_into_one_tensor():
    parameters = 8 * 218112000 + 2 * 128256 * 4096 + 4096
    # The fp32 copy, less the bf16 gradients that are gone by then: on one replica 4 − 2 B each.
    assert memory.estimate(MODEL, Degrees(), training()).step == 2 * parameters
    # On four, a quarter is copied.
    assert memory.estimate(MODEL, Degrees(dp=4), training()).step == 0
    assert memory.estimate(MODEL, Degrees(dp=4), training(2)).step == parameters
    assert memory.estimate(MODEL, Degrees(dp=4), training(3)).step == 0
    assert memory.estimate(MODEL, Degrees(), training(backend="torch")).step == 0
    # A pipeline's last stage still has logits, and their gradient, in bf16.
    stage = memory.estimate(MODEL, Degrees(pp=2), training())
    held = 4 * 218112000 + 128256 * 4096 + 4096
    assert stage.step == 2 * held + 4 * 8192 * 128256


def test_the_sum_is_spelled_out():
    estimate = memory.MemoryEstimate(1e9, 2e9, 3e9, activations=0.5e9, working=1e9, logits=4e8)
    assert estimate.allocated == 7.5e9
    assert estimate.arithmetic() == (
        "weights 1.0 + gradients 2.0 + optimiser 3.0 + activations 0.5 + working 1.0 + runtime 3.0"
    )
    stepping = replace(estimate, step=2e9)
    assert stepping.allocated == 8e9
    assert stepping.arithmetic() == (
        "weights 1.0 + gradients 2.0 + optimiser 3.0 + optimiser step 2.0 + runtime 3.0"
    )


@pytest.mark.parametrize(("compiled", "byte_count"), [(False, 9), (True, 2)])
def test_fp8_holds_what_bf16_does_and_casts_the_operands_of_a_product_besides(compiled, byte_count):
    # Of few words, so that it is a layer that runs at the fullest moment, not the head.
    model = Model("few-words", "llama", 32, 4096, 14336, 32, 8, 8192, 1024)
    bf16 = training(recomputation="none", backend="torch", compile=compiled)
    before = memory.estimate(model, Degrees(), bf16)
    after = memory.estimate(model, Degrees(), replace(bf16, precision="fp8"))

    # The gradient of gate and up: 8 192 tokens, each twice the feed-forward width.
    assert after.working - before.working == byte_count * 8192 * 2 * 14336
    assert replace(after, working=before.working, cached=before.cached) == before
