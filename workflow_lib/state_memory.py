"""Bytes of weights, gradients and optimiser state, and of buffers in which the two backends
exchange them."""

from __future__ import annotations

from dataclasses import dataclass

from workflow_lib import formulas
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import SUMS, Precision, Training

#: DeepSpeed's defaults, in parameters: those gathered at once in ZeRO-3, and those of a bucket of
#: gradients
LIVE_PARAMETERS, BUCKET_PARAMETERS = 1_000_000_000, 500_000_000
_BYTES: dict[Precision, int] = {"bf16": 2, "fp32": 4}
#: bytes of an element of a gradient that is reduced over replicas, for any precision of the cell
REDUCED_BYTES = _BYTES[SUMS]


@dataclass(frozen=True)
class Held:
    """Parameters of one rank before ZeRO cuts them."""

    #: parameters that are the same on all replicas
    dense: float
    #: parameters of experts, which are spread over ep replicas
    experts: float
    #: parameters of low-rank adapters, which are then the only trained ones; 0 without
    adapters: float
    #: parameters of one layer; and of the larger of embedding and head, if the rank has them
    layer: float
    end: float
    #: parameters of all layers
    layers: float
    #: parameters of the last part of a stage, whose weights torch's ZeRO-3 keeps gathered
    last: float

    @property
    def all(self) -> float:
        return self.dense + self.experts

    def trained(self, training: Training) -> tuple[float, float]:
        """Parameters that are trained: those that all replicas hold, and those of experts."""
        return (self.adapters, 0.0) if training.workload == "lora" else (self.dense, self.experts)

    def bucket(self, training: Training) -> float:
        """Parameters whose gradients DeepSpeed reduces at once."""
        largest = 0.0 if self.adapters else self.end
        return bucket_parameters(training.zero_stage, self.adapters or self.all, largest)


def bucket_parameters(zero_stage: int, trained: float, largest: float) -> float:
    """Size of DeepSpeed's buckets: its own, at most what the rank trains. In ZeRO-2 the largest
    parameter must fit. DeepSpeed 0.19.8 reduces a larger gradient in place, on a second stream if
    it overlaps, and frees its memory meanwhile: what comes to lie there is overwritten.
    """
    least = largest if zero_stage == 2 else 0.0
    return min(max(BUCKET_PARAMETERS, least), trained)


def element_bytes(training: Training) -> int:
    """Bytes of an element of activations, and of weights as they are computed with."""
    return _BYTES[training.held_precision]


def held_parameters(model: Model, degrees: Degrees, training: Training, rank: int) -> Held:
    counts = formulas.parameters(model, model.padded_vocabulary_size)
    tp, pp, mine = degrees.tp, degrees.pp, degrees.stages_of(rank)
    last = mine[-1] == degrees.stages - 1
    of_stages = degrees.layers_of_stages(model.layers)
    layers = sum(of_stages[stage] for stage in mine)
    dense, experts = counts.layer_dense / tp, 0.0
    if model.experts:
        experts = counts.feed_forward * model.experts / (degrees.ep * tp)
    else:
        dense += counts.feed_forward / tp
    embedding = counts.input_embedding / tp
    head = counts.output_head / tp
    ends, largest = 0.0, 0.0
    if rank == 0:
        ends, largest = embedding + counts.position_embedding, embedding
    if last:
        if not head and pp > 1:  # a tied head is a second copy of the embedding
            head = embedding
        ends += head + counts.final_norm
        largest = max(largest, head)
    adapters = 0.0
    if training.workload == "lora":
        share = layers / model.layers
        adapters = share * formulas.adapter_parameters(model, training.lora_rank, tp)
    return Held(
        dense=layers * dense + ends,
        experts=layers * experts,
        adapters=adapters,
        layer=dense + experts,
        layers=layers * (dense + experts),
        end=largest,
        last=(head or embedding) if last else dense + experts,
    )


def states_bytes(
    held: Held, degrees: Degrees, training: Training
) -> tuple[float, float, float, float]:
    """Bytes of weights, gradients, optimiser state and communication.

    ZeRO (arXiv 1910.02054, section 3.1 and figure 1): stages 1, 2 and 3 divide optimiser, gradients
    and weights over the replicas.
    """
    stage, element = training.zero_stage, element_bytes(training)
    frozen = 0.0
    dense, experts = held.trained(training)

    def cut(bytes_each: float, divided: bool, dense: float, experts: float) -> float:
        shards = (degrees.copies, _expert_copies(degrees)) if divided else (1, 1)
        return bytes_each * (dense / shards[0] + experts / shards[1])

    if training.backend == "torch":
        # fp32 weights, cut like their gradients and both moments; see trainers/native/sharding.py.
        if training.workload == "lora":
            frozen = cut(element, stage > 0, held.dense, held.experts)
        weights = cut(4, stage > 0, dense, experts) + frozen
        summed_whole = stage < 2 and training.micro_batches(degrees.dp) > 1
        gradients = cut(4, stage > 0 and not summed_whole, dense, experts)
        optimizer = cut(8, stage > 0, dense, experts)
        # Compute uses a copy. In ZeRO-3 it is of the layer that runs, of the next one, and of the
        # last part of the stage, which stays gathered.
        of_layer = 1 if training.gathers_float8 else element
        communication = element * (held.all - held.layers) + of_layer * held.layers
        if stage == 3:
            running = 2 * of_layer * held.layer + element * held.last
            communication = min(communication, running)
        return weights, gradients, optimizer, communication

    if training.workload == "lora":
        frozen = cut(element, stage == 3, held.dense, held.experts)
    weights = cut(element, stage == 3, dense, experts) + frozen
    # In bf16 with ZeRO-0 or 1 the gradients of a micro-batch (2 B) stay beside their sums in fp32.
    gradients = cut(6 if element == 2 and stage < 2 else 4, stage >= 2, dense, experts)
    # Two moments and a copy of the weights in fp32; the copy also if they are fp32, except without
    # ZeRO.
    optimizer = cut(12 if element == 2 or stage > 0 else 8, stage > 0, dense, experts)
    communication = 0.0
    if stage == 3:
        # This one bucket has the precision of the reduction, the buckets of other stages that of
        # gradients.
        reduced = REDUCED_BYTES * held.bucket(training)
        communication = element * min(LIVE_PARAMETERS, held.all) + reduced
    elif _has_buckets(training):
        communication = (2 if training.overlap else 1) * element * held.bucket(training)
    return weights, gradients, optimizer, communication


def freed_bytes(held: Held, degrees: Degrees, training: Training) -> float:
    """Bytes of blocks that torch's allocator keeps where no layer can use them.

    It keeps what a stream lets go for that stream: what an end of the model is gathered and reduced
    in, with the torch backend and DeepSpeed's ZeRO-3, and its other stages if they overlap. With
    overlap, ZeRO-3 has its gathered weights and buckets a second time, while streams hold the first
    ones. The six layouts of DeepSpeed in the evidence lie within -3.1 to +2.0 %, the estimate over
    the count.
    """
    reduced = 0 if training.workload == "lora" else REDUCED_BYTES
    ends = held.end * (element_bytes(training) + reduced)
    if training.backend == "torch":
        return ends
    if training.zero_stage < 3:
        return ends if training.overlap else 0.0
    if not training.overlap:
        return ends
    *_, gathered = states_bytes(held, degrees, training)
    return ends + gathered + reduction_bytes(0.0, held, training)


def step_bytes(held: Held, degrees: Degrees, training: Training) -> float:
    """Bytes that the optimiser's step needs besides weights, gradients and optimiser state, when
    activations are freed.

    DeepSpeed's ZeRO-0 to 2 copy the fp32 gradients of a parameter group into one tensor; bf16
    gradients beside the sums in fp32 are freed by then. The spread experts are a group of their
    own.
    """
    stage, bf16 = training.zero_stage, training.precision == "bf16"
    if training.backend == "torch" or stage == 3 or (stage == 0 and not bf16):
        return 0.0
    dense, experts = held.trained(training)
    replicas = degrees.dp, _expert_copies(degrees)
    if degrees.ep == 1:
        dense, experts = dense + experts, 0.0
    copy = 4 * max(dense / replicas[0], experts / replicas[1])
    gone = 2 * (dense + experts) if bf16 and stage < 2 else 0.0
    return max(copy - gone, 0.0)


def reduction_bytes(unit: float, held: Held, training: Training) -> float:
    """Bytes that are needed for a moment to reduce gradients over replicas.

    With torch they are the gradient of one ``unit`` (in parameters) and the copy that is reduced.
    With DeepSpeed they are a copy of a bucket, and one more if that is in bf16.
    """
    element = element_bytes(training)
    if training.backend == "torch":
        return 0.0 if training.workload == "lora" else unit * (element + REDUCED_BYTES)
    if training.zero_stage == 3 or element == REDUCED_BYTES:
        copies = REDUCED_BYTES
    else:
        copies = element + REDUCED_BYTES
    return copies * held.bucket(training) if _has_buckets(training) else 0.0


def _expert_copies(degrees: Degrees) -> int:
    """How many replicas hold the same experts."""
    return max(degrees.dp // degrees.ep, 1)


def _has_buckets(training: Training) -> bool:
    """Whether DeepSpeed collects gradients in buckets. In bf16, ZeRO-0 and 1 sum them elsewhere."""
    stage = training.zero_stage
    return stage >= 2 or (stage == 1 and training.precision == "fp32")
