"""The parts of a step: what each would take at its machine's peak.

A step takes ``(m + (p − 1)/v)·a + b`` seconds: m micro-batches on p pipeline ranks of v chunks
(arXiv 2104.04473, section 2.2). ``a`` is a micro-batch's time on the slowest rank, ``b`` the rest
of a step. Both are sums of parts. Each part is work divided by a peak, multiplied by a fitted
factor: a factor of 1 is the peak, 1.5 is two thirds of it. For communication the factor counts only
the time that is not hidden.

=========  ============================================================  =========
part       work                                                          over
=========  ============================================================  =========
product    products with weights, forward and backward: 6 FLOPs a        peak
           parameter and token; 8 with full recomputation
attention  scores and weighted sums under the causal mask                bf16 peak
weight     weights read twice, gradients added to in 4 bytes, each       memory
           micro-batch: small micro-batches do not hide it
element    what norms, gates, the loss and the like read and write       memory
head       the product with the vocabulary, on the last rank             bf16 peak
tensor     gathers and scatters of tensor parallelism (2205.05198)       links
context    keys and values that context-parallel ranks pass on           links, network
routed     products with experts, once more: they are smaller, and wait  peak
           for the fullest
expert     tokens to experts and back, forward and backward              links, network
gather     weights that ZeRO-3 gathers, gradients that it scatters;      links, network
           gradients that ZeRO-2 scatters before the last pass
send       activations to the next chunk                                 network
launch     100 µs a layer                                                –
reduce     gradients over replicas, and weights back: what passes        links, network
           beside them cannot hide
optimiser  states that the optimiser reads and writes                    memory
constant   10 ms a step                                                  –
=========  ============================================================  =========
"""

from __future__ import annotations

from collections.abc import Mapping

from workflow_lib.projection.layouts import Layout

#: names of the parts of a micro-batch, and of a step
MICRO_BATCH_PARTS = (
    *(
        "product",
        "weight",
        "attention",
        "element",
        "head",
        "tensor",
        "context",
        "routed",
        "expert",
        "gather",
    ),
    *("send", "launch"),
)
STEP_PARTS = ("reduce", "optimiser", "constant")

#: of a weight or an activation in bf16
ELEMENT_BYTES = 2
#: how often a layer's tensors of one width are read or written, forward and backward together:
#: residual stream (norms, additions), feed-forward part (gate, activation), attention (rotations)
_RESIDUAL_PASSES, _INNER_PASSES, _HEAD_PASSES = 30, 9, 9
#: factor of products when the time that they can hide is computed
_NOMINAL = 1.4
#: bytes of traffic for a weight: it is read forward and backward in 2 bytes, and its gradient is
#: read and written in 4
_WEIGHT_BYTES = 12.0
_LAUNCH_S, _CONSTANT_S = 1e-4, 1e-2
#: least share of a gather that is not hidden, however long the products beside it
_LEAST_SHOWN = 0.1


def terms(layout: Layout) -> dict[str, float]:
    """Seconds at the peak of each term of one step: of all passes of micro-batches, and of the rest
    of the step. Raises KeyError for a precision whose peak is not known."""
    of_pass = _of_a_pass(layout)
    passes = layout.bubble * (1 + layout.evaluation)
    in_passes = {name: passes * of_pass[name] for name in MICRO_BATCH_PARTS}
    return in_passes | _of_a_step(layout, of_pass)


def _of_a_pass(layout: Layout) -> dict[str, float]:
    """A micro-batch's parts on the pipeline rank that takes longest."""
    machine, shape = layout.machine, layout.shape
    bf16 = machine.peak("BF16")
    cut = layout.tp * layout.cp
    tokens = layout.micro_batch * layout.sequence_length
    again = _again(layout)
    attended_again = 1.0 if layout.recomputation == "none" else 4 / 3
    product, head = _products_s(layout)
    slowest = slowest_rank(layout)
    layers = layout.layers_of_ranks[slowest]
    has_head = slowest == layout.pp - 1
    # One pipeline rank alone has the embedding beside the head, and adds to its gradients as well.
    ends = shape.end_parameters / layout.tp * (has_head + (layout.pp == 1))
    logits = tokens / layout.cp * shape.vocabulary / layout.tp
    loss = layout.loss_bytes * logits / machine.memory_bytes_per_s if has_head else 0.0
    # The causal mask leaves half of each s × s matrix: 4·s/2 FLOPs forward, twice that backward.
    attention = 6.0 * layout.sequence_length * shape.heads * shape.head_size * tokens / cut / bf16
    held = layer_held(layout)
    of_experts = shape.experts_per_token * shape.expert_parameters / shape.layer_active_parameters
    return {
        "product": layers * product,
        "weight": _WEIGHT_BYTES * (layers * held + ends) / machine.memory_bytes_per_s,
        "attention": attended_again * layers * attention,
        "element": again * layers * _element_bytes(layout) / machine.memory_bytes_per_s + loss,
        "head": head if has_head else 0.0,
        "tensor": again * layers * _tensor_bytes(layout) / machine.bytes_per_s(layout.tp),
        "context": again * layers * _context_bytes(layout) / machine.bytes_per_s(cut),
        "routed": layers * product * of_experts if shape.experts else 0.0,
        "expert": again * layers * expert_bytes(layout) / machine.bytes_per_s(cut * layout.ep),
        "gather": layers * _gather_s(layout),
        "send": send_bytes(layout) / machine.network_bytes_per_s,
        "launch": again * layers * _LAUNCH_S,
    }


def slowest_rank(layout: Layout) -> int:
    """The pipeline rank that takes longest, by its products."""
    return max(range(layout.pp), key=products_of_ranks_s(layout).__getitem__)


def products_of_ranks_s(layout: Layout) -> list[float]:
    """Seconds of a micro-batch's products on each pipeline rank, the last of which has the head."""
    product, head = _products_s(layout)
    seconds = [layers * product for layers in layout.layers_of_ranks]
    seconds[-1] += head
    return seconds


def _products_s(layout: Layout) -> tuple[float, float]:
    """Seconds of the products of a layer, and of the head."""
    shape, machine = layout.shape, layout.machine
    tokens = layout.micro_batch * layout.sequence_length
    cut = layout.tp * layout.cp
    peak = machine.peak(layout.precision)
    product = _again(layout) * 6.0 * shape.layer_active_parameters * tokens / cut / peak
    return product, 6.0 * shape.end_parameters * tokens / cut / machine.peak("BF16")


def _again(layout: Layout) -> float:
    """How often layers are passed through, both ways together, with recomputation."""
    return {"none": 1.0, "selective": 1.0, "full": 4 / 3}[layout.recomputation]


def _of_a_step(layout: Layout, of_pass: Mapping[str, float]) -> dict[str, float]:
    replicas = layout.copies
    held = held_parameters(layout)
    exchanged = 0.0 if layout.sharding == 3 else _exchanged_s(layout, of_pass, held)
    shards = replicas if layout.sharding else 1
    # Weight and gradient once; master weight and two moments read and written.
    states = held * (6.0 + 20.0 / shards) / layout.machine.memory_bytes_per_s
    return {"reduce": exchanged, "optimiser": states, "constant": _CONSTANT_S}


def _exchanged_s(layout: Layout, of_pass: Mapping[str, float], held: float) -> float:
    """Seconds of the exchange between replicas that no computation hides.

    Gradients go out while the last micro-batch's backward pass runs, and weights come back while
    the first one's forward pass runs. If pipeline ranks have several chunks, a chunk's exchange
    runs beside the passes of the other chunks, which are those of as many micro-batches as there
    are ranks (arXiv 2104.04473, figure 4). ZeRO-3 exchanges with every micro-batch instead.
    """
    replicas = layout.copies
    share = (replicas - 1) / replicas
    speed = layout.machine.ring_bytes_per_s(replicas, layout.tp)
    gradients = held * layout.gradient_bytes * share / speed
    weights = held * ELEMENT_BYTES * share / speed
    return _not_hidden(layout, of_pass, gradients, weights)


def not_hidden_s(layout: Layout, gradients_s: float, weights_s: float) -> float:
    """How much of the exchange of gradients and of weights no computation hides, in s."""
    return _not_hidden(layout, _of_a_pass(layout), gradients_s, weights_s)


def _not_hidden(
    layout: Layout, of_pass: Mapping[str, float], gradients_s: float, weights_s: float
) -> float:
    if not layout.overlap:
        return gradients_s + weights_s
    beside = layout.pp if layout.virtual_stages > 1 else 1
    computed = sum(of_pass[name] for name in ("product", "attention", "head"))
    window = beside * _NOMINAL * computed
    return _shown(gradients_s, 2 / 3 * window) + _shown(weights_s, 1 / 3 * window)


def _shown(hidden_s: float, products_s: float) -> float:
    return max(hidden_s - products_s, _LEAST_SHOWN * hidden_s)


def _element_bytes(layout: Layout) -> float:
    shape = layout.shape
    residual = _RESIDUAL_PASSES * shape.hidden / (layout.tp if layout.sequence_parallel else 1)
    widened = (2 if shape.gated else 1) * max(1, shape.experts_per_token) * shape.ffn
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_size
    inner = (_INNER_PASSES * widened + _HEAD_PASSES * heads) / layout.tp
    tokens = layout.micro_batch * layout.sequence_length / layout.cp
    return ELEMENT_BYTES * tokens * (residual + inner)


def _tensor_bytes(layout: Layout) -> float:
    """Bytes of four gathers and four scatters per layer, of which each rank receives the others'
    part."""
    tokens = layout.micro_batch * layout.sequence_length / layout.cp
    return 8.0 * ELEMENT_BYTES * tokens * layout.shape.hidden * (layout.tp - 1) / layout.tp


def _context_bytes(layout: Layout) -> float:
    """Bytes of the other ranks' keys and values, forward and (twice) backward."""
    tokens = layout.micro_batch * layout.sequence_length / layout.cp
    width = 2 * layout.shape.kv_heads * layout.shape.head_size / layout.tp
    return 3.0 * (layout.cp - 1) * ELEMENT_BYTES * tokens * width


def expert_bytes(layout: Layout) -> float:
    """Bytes of each token to each of its experts and back, forward and backward."""
    if layout.ep == 1:
        return 0.0
    tokens = layout.micro_batch * layout.sequence_length / (layout.cp * layout.tp)
    copies = tokens * layout.shape.experts_per_token * (layout.ep - 1) / layout.ep
    return 4.0 * ELEMENT_BYTES * copies * layout.shape.hidden


def _gather_s(layout: Layout) -> float:
    """Seconds of a layer's exchange in a pass. In ZeRO-3 they are of weights twice and gradients
    once, all in 2 bytes; in ZeRO-2 of gradients, whose last exchange is that of ZeRO-1."""
    moved = {
        2: layout.gradient_bytes * scattered_before(layout),
        3: 6.0 * _again(layout),
    }.get(layout.sharding, 0.0)
    replicas = layout.copies
    share = (replicas - 1) / replicas
    held = layout.shape.layer_parameters / (layout.tp * layout.ep)
    return moved * held * share / layout.machine.ring_bytes_per_s(replicas, layout.tp)


def scattered_before(layout: Layout) -> float:
    """The share of passes before the last one, in which ZeRO-2 scatters gradients and ZeRO-1 does
    not."""
    return 1 - 1 / layout.bubble


def send_bytes(layout: Layout) -> float:
    """Bytes sent there and back for each chunk; a rank's part of the sequence if that is cut."""
    if layout.pp == 1:
        return 0.0
    tokens = layout.micro_batch * layout.sequence_length / layout.cp
    cut = layout.tp if layout.sequence_parallel else 1
    return 2.0 * layout.virtual_stages * ELEMENT_BYTES * tokens * layout.shape.hidden / cut


def held_parameters(layout: Layout) -> float:
    """Parameters of the fullest rank, before ZeRO."""
    shape = layout.shape
    ends = shape.end_parameters * (2 if layout.pp == 1 and not shape.tied else 1)
    return max(layout.layers_of_ranks) * layer_held(layout) + ends / layout.tp


def layer_held(layout: Layout) -> float:
    """Parameters of one layer on one rank, before ZeRO."""
    shape = layout.shape
    experts = max(shape.experts, 1) * shape.expert_parameters / layout.ep
    return (shape.attention_parameters + shape.shared_parameters + experts) / layout.tp
