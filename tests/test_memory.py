"""The memory estimate against peaks that were measured."""

import pytest

from workflow_lib import memory
from workflow_lib.records import Degrees, Model, Training

# Llama 3 8B at full width, cut to 8 layers, on two H200 of one host, 2026-11-21: torch 2.11,
# DeepSpeed 0.19.8, driver 580.159.04, global batch 16. The figures are
# torch.cuda.max_memory_allocated of the fullest rank, so they leave out the CUDA context.
MODEL = Model("llama3-8b-8l", "llama", 8, 4096, 14336, 32, 8, 8192, 128256)
MEASURED = [
    (Degrees(dp=2), 1, "full", 52.489e9),
    (Degrees(dp=2), 1, "none", 64.175e9),
    (Degrees(dp=2), 3, "full", 41.552e9),
    (Degrees(tp=2), 1, "full", 35.005e9),
    (Degrees(pp=2), 1, "full", 45.511e9),
]


def training(zero_stage=1, recomputation="full", precision="bf16"):
    return Training(
        zero_stage=zero_stage,
        micro_batch_size=1,
        global_batch_size=16,
        precision=precision,
        recomputation=recomputation,
        overlap=False,
        warmup_steps=2,
        measured_steps=8,
        learning_rate=1e-4,
        seed=1,
    )


@pytest.mark.parametrize(("degrees", "zero_stage", "recomputation", "measured"), MEASURED)
def test_the_estimate_is_within_a_tenth_of_the_measured_peak(
    degrees, zero_stage, recomputation, measured
):
    estimate = memory.estimate(MODEL, degrees, training(zero_stage, recomputation))
    assert estimate.total == pytest.approx(measured, rel=0.1)


def test_the_states_of_a_single_gpu_are_counted_by_hand():
    tiny = Model("tiny", "llama", 1, 4, 8, 2, 2, 8, 10)
    # Attention 64, feed-forward 96, two norms 8; embedding and head 40 each, the final norm 4.
    parameters = 64 + 96 + 8 + 80 + 4
    estimate = memory.estimate(tiny, Degrees(), training(zero_stage=0, precision="fp32"))
    assert (estimate.weights, estimate.gradients) == (4 * parameters, 4 * parameters)
    assert estimate.optimizer == 8 * parameters
    # One layer's input, 8 tokens × 4 × 4 B; and the layer being recomputed: 4 hidden + queries,
    # output, keys, values (4 each) + 3 × 8.
    assert estimate.activations == 8 * 4 * 4 + 8 * 4 * (16 + 16 + 24)
    assert estimate.logits == 8 * 10 * (4 + 4 + 4)


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"), [(0, 2, 6, 12), (1, 2, 6, 3)]
)
def test_zero_divides_the_optimizer_first(stage, weights, gradients, optimizer):
    estimate = memory.estimate(MODEL, Degrees(dp=4), training(zero_stage=stage))
    parameters = estimate.weights / 2
    assert estimate.weights == weights * parameters
    assert estimate.gradients == gradients * parameters
    assert estimate.optimizer == optimizer * parameters


def test_the_sum_is_spelled_out():
    estimate = memory.MemoryEstimate(1e9, 2e9, 3e9, 0.5e9, 0.0)
    assert estimate.arithmetic() == (
        "weights 1.0 + gradients 2.0 + optimiser 3.0 + activations 0.5 + runtime 3.2"
    )
