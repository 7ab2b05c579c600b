"""Estimates how much memory a cell's fullest GPU will need, from the cell's definition.

It tells a cell that fits from one that does not, before GPU time is spent. Each term counts what
the layers and the two backends keep. ``RUNTIME_BYTES`` stands for what is not counted:
fragmentation, the CUDA context and communicators.
"""

from __future__ import annotations

from dataclasses import dataclass

from workflow_lib.memory import activations, states
from workflow_lib.records import Degrees, Model, Training

#: the CUDA context, communicators and fragmentation: an allowance, not a measurement
RUNTIME_BYTES = 3 * 2**30
#: Blocks that torch's allocator keeps for later, as a share of its allocation at the peak: an
#: allowance. In five runs of Llama 3 8B on 4×H200 the driver counted 7 to 19 GB more than torch
#: allocated, including the runtime. These blocks are not required: the allocator frees them when
#: memory gets short.
CACHED_SHARE = 0.1
#: A layout is refused if its estimate exceeds the GPU's memory by more than this share. Within this
#: share the estimate cannot decide, and a run that ends as out_of_memory is a result.
UNCERTAINTY = 0.05


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the fullest GPU, by kind."""

    #: weights as the optimiser holds them, or frozen ones
    weights: float
    gradients: float
    optimizer: float
    #: weights gathered from other replicas or cast for compute, and buckets of gradients
    communication: float = 0.0
    #: activations that layers keep for the backward pass
    activations: float = 0.0
    #: tensors that a pipeline's stage received, and sends that wait
    pipeline: float = 0.0
    #: keys and values of the generated sequences
    cache: float = 0.0
    #: the layer that runs: its activations and gradients, without those that are kept
    working: float = 0.0
    #: logits and their gradient in the loss; never at the same time as ``working``
    logits: float = 0.0
    #: what the optimiser's step adds, and logits that are still held; at that time activations are
    #: freed
    step: float = 0.0
    runtime: float = RUNTIME_BYTES

    @property
    def allocated(self) -> float:
        """The peak of what torch allocates; ``torch.cuda.max_memory_allocated`` measures it."""
        states = self.weights + self.gradients + self.optimizer + self.communication
        return states + max(self._passes, self.step)

    @property
    def _passes(self) -> float:
        kept = self.activations + self.pipeline + self.cache
        return kept + max(self.working, self.logits)

    @property
    def total(self) -> float:
        """The memory that the GPU must have, in bytes."""
        return self.allocated + self.runtime

    def used(self, capacity_bytes: int | None) -> float:
        """The peak that the driver will count, in bytes; at most ``capacity_bytes``, the GPU's
        memory, if known."""
        used = self.allocated * (1 + CACHED_SHARE) + self.runtime
        return used if capacity_bytes is None else min(used, float(capacity_bytes))

    def arithmetic(self) -> str:
        """The sum as text, in GB (10⁹ bytes)."""
        passes = (
            ("activations", self.activations),
            ("pipeline", self.pipeline),
            ("cache", self.cache),
            ("working", self.working) if self.working > self.logits else ("logits", self.logits),
        )
        parts = (
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimiser", self.optimizer),
            ("communication", self.communication),
            *(passes if self._passes >= self.step else (("optimiser step", self.step),)),
            ("runtime", self.runtime),
        )
        return " + ".join(f"{name} {size / 1e9:.1f}" for name, size in parts if size)


def estimate(model: Model, degrees: Degrees, training: Training) -> MemoryEstimate:
    """Estimate the peak of the fullest rank. All pipeline ranks are tried, because
    stages differ."""
    of_workload = _generating if training.workload == "inference" else _training
    ranks = (of_workload(model, degrees, training, rank) for rank in range(degrees.pp))
    return max(ranks, key=lambda each: each.total)


def _training(model: Model, degrees: Degrees, training: Training, rank: int) -> MemoryEstimate:
    held = states.held_parameters(model, degrees, training, rank)
    layer = activations.Layer(model, degrees, training)
    of_stages, mine = degrees.layers_of_stages(model.layers), degrees.stages_of(rank)
    chunks = [of_stages[stage] for stage in mine]
    under_way = activations.in_flight(degrees, training.micro_batches(degrees.dp), rank)
    weights, gradients, optimizer, communication = states.states_bytes(held, degrees, training)
    last = mine[-1] == degrees.stages - 1
    step = states.step_bytes(held, degrees, training)
    if last and step and degrees.pp > 1:
        step += activations.left_logits_bytes(model, degrees, training)
    return MemoryEstimate(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        communication=communication,
        activations=layer.kept
        * sum(layers * times for layers, times in zip(chunks, under_way, strict=True))
        + layer.output_gradients * max(chunks) * activations.deferred(degrees, rank)
        + layer.whole * activations.layers_under_way(degrees, chunks),
        pipeline=activations.pipeline_bytes(model, degrees, training, rank, sum(under_way)),
        working=max(
            layer.whole
            - layer.kept
            + layer.gradients
            + layer.casts
            + states.reduction_bytes(held.layer, held, training),
            states.reduction_bytes(held.end, held, training),
        ),
        logits=activations.logits_bytes(model, degrees, training) if last else 0.0,
        step=step,
    )


def _generating(model: Model, degrees: Degrees, training: Training, rank: int) -> MemoryEstimate:
    """The estimate for inference: weights, keys and values in every layer of all of a replica's
    sequences, and the layer that runs over the prompts of one micro-batch. See
    training/engines/generation.py."""
    element = states.element_bytes(training)
    layers = sum(degrees.layers_of_stages(model.layers)[rank :: degrees.pp])
    tokens = training.micro_batch_size * model.sequence_length
    key_value = model.key_value_size / degrees.tp
    # Only for each sequence's last token, and once more in fp32.
    logits = training.micro_batch_size * model.padded_vocabulary_size / degrees.tp * (element + 4)
    return MemoryEstimate(
        weights=element * states.held_parameters(model, degrees, training, rank).all,
        gradients=0.0,
        optimizer=0.0,
        cache=training.micro_batches(degrees.dp) * 2 * layers * key_value * tokens * element,
        # One tensor that was received, and two that are being sent.
        pipeline=3.0 * tokens * model.hidden_size * element if degrees.pp > 1 else 0.0,
        working=activations.Layer(model, degrees, training).whole,
        logits=logits if rank == degrees.pp - 1 else 0.0,
    )


def decode_bytes(model: Model, degrees: Degrees, training: Training, context: float) -> float:
    """Bytes that one pass over the fullest stage reads while it generates a token for each sequence
    of a micro-batch: weights, and keys and values of ``context`` tokens. Of E experts, only those
    count that the router is expected to choose: all but a share of (1 − k/E)ⁿ, for n tokens with k
    experts each."""
    element = states.element_bytes(training)
    sequences = training.micro_batch_size
    chosen = 0.0
    if model.experts:
        missed = 1 - model.experts_per_token / model.experts
        chosen = 1 - missed ** (sequences * degrees.ep)
    key_value = model.key_value_size / degrees.tp

    def read(rank: int) -> float:
        held = states.held_parameters(model, degrees, training, rank)
        layers = sum(degrees.layers_of_stages(model.layers)[rank :: degrees.pp])
        cache = 2 * layers * key_value * sequences * context
        return element * (held.dense + chosen * held.experts + cache)

    return max(map(read, range(degrees.pp)))
