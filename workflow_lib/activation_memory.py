"""Bytes of what layers keep for the backward pass, of what stages exchange, and of the logits."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training
from workflow_lib.state_memory import element_bytes

#: how many logits the loss holds in fp32 at once, as trainers/native/cross_entropy.py does
FP32_LOGITS = 2**26
#: rows of the fullest expert-parallel rank divided by the mean, with dropless routing: an allowance
DROPLESS_LOAD = 1.25
#: Bytes of an element of the largest operand while torchao casts it operator by operator: the
#: number times its scale and the same clamped to the range of e4m3, both in fp32, and the result.
#: If compiled, these are one kernel, and the result exists by rows and by columns.
FLOAT8_CAST_BYTES = 9


class Layer:
    """Bytes that one layer keeps for one micro-batch.

    They are counted as in arXiv 2205.05198, sections 4.1 and 4.2.2, with attention that never
    stores the score matrix, and without dropout.
    """

    def __init__(self, model: Model, degrees: Degrees, training: Training) -> None:
        tp, hidden, ffn = degrees.tp, model.hidden_size, model.ffn_hidden_size
        sliced = training.sequence_parallel
        # Between the tensor-parallel parts each rank has its slice of the sequence, or the whole.
        residual = hidden / tp if sliced else float(hidden)
        # Queries, keys and values (these of whole sequences), and attention's result.
        query, key_value = model.query_size, model.key_value_size
        attention = (2 * query + 2 * key_value * degrees.cp) / tp
        # Norms of queries and keys keep these, the values beside them, and their results.
        normed = (2 * query + 3 * key_value) / tp if model.qk_norm else 0.0
        widened = (1 if model.is_plain else 2) * ffn / tp  # a gate and the values that it scales
        inner = widened + ffn / tp
        # Selective recomputation keeps products that are summed over the group before and after the
        # sum, unless they are summed to slices.
        summed = residual if tp == 1 or sliced else 2 * residual
        if model.experts:
            rows = float(model.experts_per_token)
            if training.routing == "dropless" and degrees.ep > 1:
                rows *= DROPLESS_LOAD
            # Rows as inputs and as outputs of the experts.
            feed_forward = rows * (inner + 2 * hidden)
            # The experts' results and, with expert parallelism, the rows that are sent there and
            # back; beside their exchange, results are not kept before they are back.
            travelled = 1 if degrees.ep == 1 else 2 if training.overlap else 3
            products = rows * (widened + travelled * hidden)
            if tp > 1:
                products += residual + (hidden if sliced else 0)
        else:
            rows = 1.0
            feed_forward, products = inner, widened + summed
        # Both norms' inputs (in neox they are the same), their outputs, and what lies between.
        norms = (3 if model.family == "neox" else 4) * residual
        whole = norms + normed + attention + feed_forward
        kept = {
            "none": whole,
            "selective": residual + attention + summed + products,
            "full": residual,
        }[training.recomputation]
        tokens = tokens_of_rank(model, degrees, training)
        unit_bytes = tokens * element_bytes(training)
        #: bytes kept if nothing is recomputed
        self.whole = unit_bytes * whole
        #: Bytes while the feed-forward part runs and nothing is kept for a backward pass: it, its
        #: input, and the residual. Attention's have been freed.
        self.passing = unit_bytes * max(
            feed_forward + 3 * residual, attention + normed + 2 * residual
        )
        #: bytes kept without what is recomputed; recomputation.py of the native trainer lists it
        self.kept = unit_bytes * kept
        #: gradients of the feed-forward part's inner activations, of its input and of the layer's
        #: input
        self.gradients = unit_bytes * (rows * inner + 2 * residual)
        #: gradients of its products' results, which deferred gradients of weights wait for
        self.output_gradients = unit_bytes * (attention + residual + widened)
        #: bytes of operands in 8 bits while they are multiplied; everything that is kept is in bf16
        self.casts = 0.0
        if training.precision == "fp8":
            cast_bytes = 2 if training.compile else FLOAT8_CAST_BYTES
            self.casts = cast_bytes * widened * max(tokens, hidden)


def tokens_of_rank(model: Model, degrees: Degrees, training: Training) -> int:
    """Tokens of a micro-batch on a rank; its whole tensor-parallel group together has as many."""
    return training.micro_batch_size * degrees.length_of_rank(model.sequence_length)


def in_flight(degrees: Degrees, micro_batches: int, rank: int) -> list[int]:
    """For each chunk of a pipeline rank, the micro-batches between forward and backward pass at the
    peak.

    1F1B: as many as there are ranks from this one on (arXiv 2104.04473, section 2.2.1).
    Interleaved: rank p of P with v chunks warms up with 2·(P − p − 1) + (v − 1)·P passes, P
    micro-batches through each chunk in turn (section 2.2.2), and has one more in flight. The
    zero-bubble schedules keep a micro-batch until the gradients of weights are computed. They have
    as many passes in flight on every rank as 1F1B on the first (arXiv 2401.10241, sections 2.1 and
    6): P · v.
    """
    pp, chunks = degrees.pp, degrees.virtual_stages
    if degrees.schedule == "zero-bubble-v":
        return [min(2 * pp - rank, micro_batches), min(rank, micro_batches)]
    if chunks == 1 and degrees.schedule == "1f1b":
        return [min(pp - rank, micro_batches)]
    warm_up = 2 * (pp - rank - 1) + (chunks - 1) * pp
    if degrees.schedule == "zero-bubble":
        warm_up = chunks * pp - 1
    passes = min(warm_up + 1, micro_batches * chunks)
    return [
        sum(1 for number in range(passes) if number // pp % chunks == chunk)
        for chunk in range(chunks)
    ]


def deferred(degrees: Degrees, rank: int) -> int:
    """The largest number of passes of a pipeline rank's chunks whose gradients of weights are
    deferred."""
    return {"1f1b": 0, "zero-bubble": rank, "zero-bubble-v": 2 * rank}[degrees.schedule]


def layers_under_way(degrees: Degrees, chunks: Sequence[int]) -> int:
    """The number of layers for which a zero-bubble schedule holds all gradients of activations at
    once, besides those of deferred passes. torch keeps the graph of the pass whose input gradients
    it computes, because the gradients of weights need it. ``chunks`` are the layers of the rank's
    chunks; in a V the last chunk runs the pass at the peak. Seen on two H200, 2026-11-22: 19.0 GB
    for 17 layers of Llama 3 8B."""
    if degrees.schedule == "1f1b":
        return 0
    return chunks[-1] if degrees.schedule == "zero-bubble-v" else max(chunks)


def pipeline_bytes(
    model: Model, degrees: Degrees, training: Training, rank: int, under_way: int
) -> float:
    """Bytes of tensors between stages. torch holds one for every micro-batch of a step and every
    chunk, for received activations and gradients each. DeepSpeed holds the outputs in flight, at
    least two."""
    if degrees.pp == 1:
        return 0.0
    tokens = tokens_of_rank(model, degrees, training)
    if training.sequence_parallel:
        tokens //= degrees.tp
    one = tokens * model.hidden_size * element_bytes(training)
    if training.backend == "deepspeed":
        return one * max(under_way, 2)
    mine, end = degrees.stages_of(rank), degrees.stages - 1
    both = sum((stage > 0) + (stage < end) for stage in mine)
    return one * both * training.micro_batches(degrees.dp)


def logits_bytes(model: Model, degrees: Degrees, training: Training) -> float:
    """Bytes of logits and their gradient, and of some logits in fp32
    (trainers/native/cross_entropy.py). DeepSpeed's pipeline keeps those of one more micro-batch."""
    tokens = tokens_of_rank(model, degrees, training)
    count = tokens * model.padded_vocabulary_size / degrees.tp
    copies = 3 if degrees.pp > 1 and training.backend == "deepspeed" else 2
    return count * copies * element_bytes(training) + 4 * min(FP32_LOGITS, count)


def left_logits_bytes(model: Model, degrees: Degrees, training: Training) -> float:
    """Bytes of logits and their gradient that DeepSpeed's pipeline holds until the next step."""
    tokens = tokens_of_rank(model, degrees, training)
    return 2 * element_bytes(training) * tokens * model.padded_vocabulary_size / degrees.tp
