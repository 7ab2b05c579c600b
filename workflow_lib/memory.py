"""Estimates how much memory a cell's fullest GPU will need, from the cell's definition.

It tells a cell that fits from one that does not, before GPU time is spent. Each term counts what
the layers and the two backends keep. ``runtime`` and ``cached`` are what a driver counts besides:
the CUDA context and communicators, and blocks that torch's allocator keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from workflow_lib import activation_memory as activations
from workflow_lib import state_memory as states
from workflow_lib.records.bounds import PARALLEL
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training

#: The CUDA context, kernels and the communicators of a rank by itself: 2.95 to 3.03 GB in one-GPU
#: runs on H100 and H200 with torch 2.11 and driver 580.
CONTEXT_BYTES = 3.0e9
#: What the communicators of one degree above 1 add: 0.2 GB (TP), 0.4 (DP), 0.7 (PP) and 1.1 (EP) on
#: two H200. Larger groups were not measured.
DEGREE_BYTES = 0.5e9
#: What freed blocks lose that are larger than what is next put into them: a constant, and a share
#: of the largest transient. Both are set by the runs that RELATIVE_ERROR names.
LEAST_REMAINDERS_BYTES, REMAINDERS_SHARE = 1.5e9, 0.2
#: How far the driver's count may lie from its estimate, as a share of the latter. Every run of the
#: 28 layouts in the evidence that the GPU's size did not bound lies within it (-2.3 to +4.9 %, the
#: estimate over the count). These also set the constants above. Another layout like them lies
#: outside the range of n with a chance of 2/(n + 1), here 7 %.
RELATIVE_ERROR = 0.05

#: whether a layout fits into a GPU's memory
Fit = Literal["yes", "perhaps", "no"]


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
    #: what the optimiser's step adds, gradients of a single micro-batch, and logits that are still
    #: held; at that time activations are freed
    step: float = 0.0
    #: the CUDA context, kernels and communicators
    runtime: float = CONTEXT_BYTES
    #: freed blocks that torch's allocator keeps while there is room
    cached: float = 0.0

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
        """The memory that the GPU must have, in bytes: the allocator frees the blocks that it keeps
        when memory gets short."""
        return self.allocated + self.runtime

    @property
    def with_room(self) -> float:
        """The peak that the driver would count on a GPU that is large enough, in bytes."""
        return self.total + self.cached

    def used(self, capacity_bytes: float | None) -> float:
        """The peak that the driver will count, in bytes; at most ``capacity_bytes``, the GPU's
        memory, if known."""
        return self.with_room if capacity_bytes is None else min(self.with_room, capacity_bytes)

    def fits(self, capacity_bytes: float) -> Fit:
        """Whether it fits into a GPU of ``capacity_bytes``.

        "yes" if the upper end of what the driver will count does; "no" if the lower end of what
        must be there does not, without the blocks that the allocator can free. Between them a run
        may end as out_of_memory, or be slowed by an allocator that frees blocks in every step.
        """
        if self.with_room * (1 + RELATIVE_ERROR) <= capacity_bytes:
            return "yes"
        return "no" if self.total > capacity_bytes * (1 + RELATIVE_ERROR) else "perhaps"

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
    stages differ.

    One rank may need the most, and the driver count the most on another whose allocator keeps more.
    The terms are those of the rank that needs the most, and ``cached`` is what the driver's highest
    count adds to them.
    """
    of_workload = _generating if training.workload == "inference" else _training
    ranks = [of_workload(model, degrees, training, rank) for rank in range(degrees.pp)]
    neediest = max(ranks, key=lambda rank: rank.total)
    more = max(rank.with_room for rank in ranks) - neediest.with_room
    return replace(neediest, cached=neediest.cached + more)


def _runtime_bytes(degrees: Degrees) -> float:
    above = [name for name in PARALLEL if getattr(degrees, name) > 1]
    return CONTEXT_BYTES + DEGREE_BYTES * len(above)


def _remainders(transient: float) -> float:
    return LEAST_REMAINDERS_BYTES + REMAINDERS_SHARE * transient


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
    working = max(
        layer.whole
        - layer.kept
        + layer.gradients
        + layer.casts
        + states.reduction_bytes(held.layer, held, training),
        states.reduction_bytes(held.end, held, training),
    )
    logits = activations.logits_bytes(model, degrees, training) if last else 0.0
    if training.backend == "torch" and training.micro_batches(degrees.dp) == 1:
        # Nothing is summed: gradients come as activations go, so only the step has them all.
        gradients, step = 0.0, step + gradients
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
        working=working,
        logits=logits,
        step=step,
        runtime=_runtime_bytes(degrees),
        cached=states.freed_bytes(held, degrees, training) + _remainders(max(working, logits)),
    )


def _generating(model: Model, degrees: Degrees, training: Training, rank: int) -> MemoryEstimate:
    """The estimate for inference: weights, keys and values in every layer of all of a replica's
    sequences, and the layer that runs over the prompts of one micro-batch. See
    trainers/native/generation.py."""
    prompt = model.sequence_length - training.generated_tokens
    element = states.element_bytes(training)
    layers = sum(degrees.layers_of_stages(model.layers)[rank :: degrees.pp])
    tokens = training.micro_batch_size * model.sequence_length
    key_value = model.key_value_size / degrees.tp
    # Only for each sequence's last token, and once more in fp32.
    logits = training.micro_batch_size * model.padded_vocabulary_size / degrees.tp * (element + 4)
    working = activations.Layer(model, degrees, training).passing * prompt / model.sequence_length
    return MemoryEstimate(
        weights=element * states.held_parameters(model, degrees, training, rank).all,
        gradients=0.0,
        optimizer=0.0,
        cache=training.micro_batches(degrees.dp) * 2 * layers * key_value * tokens * element,
        # One tensor that was received, and two that are being sent.
        pipeline=3.0 * tokens * model.hidden_size * element if degrees.pp > 1 else 0.0,
        working=working,
        logits=logits if rank == degrees.pp - 1 else 0.0,
        runtime=_runtime_bytes(degrees),
        cached=_remainders(working),
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
