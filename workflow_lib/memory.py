"""How much memory a cell's fullest GPU will need, estimated from its definition.

The estimate counts weights, gradients, optimiser state and stored activations. It is meant to tell
a cell that fits from one that does not by a wide margin, before a GPU-hour is spent; what it leaves
out (fragmentation, communication buffers, the runtime) is in ``RUNTIME_BYTES``.
"""

from __future__ import annotations

from dataclasses import dataclass

from workflow_lib import formulas
from workflow_lib.records import Degrees, Model, Training

#: the CUDA context, communicators and cuBLAS work space: an allowance, not a measurement
RUNTIME_BYTES = 3 * 2**30


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the fullest GPU, by kind."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    runtime: float = RUNTIME_BYTES

    @property
    def total(self) -> float:
        """All of it."""
        states = self.weights + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.runtime

    def arithmetic(self) -> str:
        """The sum, spelled out in GB (10⁹ bytes)."""
        parts = (
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimiser", self.optimizer),
            ("activations", self.activations),
            ("logits", self.logits),
            ("runtime", self.runtime),
        )
        return " + ".join(f"{name} {size / 1e9:.1f}" for name, size in parts if size)


def estimate(model: Model, degrees: Degrees, training: Training) -> MemoryEstimate:
    """Estimate the peak of the fullest rank: the first pipeline stage's or the last's.

    Model states follow ZeRO (arXiv 1910.02054, section 3.1 and figure 1): stages 1, 2 and 3 divide
    optimiser, gradients and weights over the replicas. bf16 training keeps 2 B of weights and
    12 B of optimiser state a parameter, fp32 training 4 and 8. Gradients are summed in fp32, 4 B;
    in bf16 with ZeRO-0 or 1 DeepSpeed keeps the bf16 ones, 2 B, beside the sums.

    On 2×H200 the sum came within 8 % of the measured peak for five layouts (tests/test_memory.py).
    """
    last = degrees.pp - 1
    ends = {_stage(model, degrees, training, stage) for stage in (0, last)}
    return max(ends, key=lambda each: each.total)


def _stage(model: Model, degrees: Degrees, training: Training, stage: int) -> MemoryEstimate:
    counts = formulas.parameters(model, model.padded_vocabulary_size)
    layers = -(-model.layers // degrees.pp)
    dense = layers * counts.layer_dense / degrees.tp
    experts = 0.0
    if model.experts:
        experts = layers * counts.feed_forward * model.experts / (degrees.ep * degrees.tp)
    else:
        dense += layers * counts.feed_forward / degrees.tp
    if stage == 0:
        dense += counts.input_embedding / degrees.tp + counts.position_embedding
    if stage == degrees.pp - 1:
        head = counts.output_head
        if not head and degrees.pp > 1:  # a tied head is a second copy of the embedding
            head = counts.input_embedding
        dense += head / degrees.tp + counts.final_norm

    weight, optimizer = (2, 12) if training.precision == "bf16" else (4, 8)
    gradient = 6 if training.precision == "bf16" and training.zero_stage < 2 else 4
    replicas = (degrees.dp, max(degrees.dp // degrees.ep, 1))

    def sharded(bytes_each: int, from_zero_stage: int) -> float:
        shards = replicas if training.zero_stage >= from_zero_stage else (1, 1)
        return bytes_each * (dense / shards[0] + experts / shards[1])

    weights = sharded(weight, 3)
    if (
        training.zero_stage == 3
    ):  # one layer's weights are gathered while it runs, the next one's too
        weights += 2 * weight * (dense + experts) / layers

    tokens = training.micro_batch_size * model.sequence_length
    element = 2 if training.precision == "bf16" else 4
    in_flight = min(degrees.pp - stage, training.micro_batches(degrees.dp))
    working = tokens * element * _activations_per_token(model, degrees)
    if training.recomputation == "full":
        # Each layer keeps its input; the one being recomputed has all of its activations.
        activations = in_flight * layers * tokens * element * model.hidden_size + working
    else:
        activations = in_flight * layers * working
    logits = 0.0
    if stage == degrees.pp - 1:
        # The logits, their fp32 copy for the loss, and its gradient.
        logits = tokens * model.padded_vocabulary_size / degrees.tp * (element + 4 + 4)
    return MemoryEstimate(
        weights=weights,
        gradients=sharded(gradient, 2),
        optimizer=sharded(optimizer, 1),
        activations=activations,
        logits=logits,
    )


def _activations_per_token(model: Model, degrees: Degrees) -> float:
    """Elements that one layer keeps for the backward pass, a token.

    Counted as in arXiv 2205.05198, section 4.1, without dropout and with flash attention, so that
    the score matrix is never stored. Norms and inputs are held whole by every tensor-parallel rank.
    """
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    key_value = hidden // model.attention_heads * model.kv_heads
    whole = 4 * hidden  # both norms' inputs and outputs
    attention = 2 * hidden + 2 * key_value  # queries and the output; keys and values
    # GPT keeps the GELU's input and output; the gated kinds the two products and their product.
    feed_forward = (2 if model.family == "gpt" else 3) * ffn
    if model.experts:
        feed_forward = model.experts_per_token * (feed_forward + hidden)
    return whole + (attention + feed_forward) / degrees.tp
