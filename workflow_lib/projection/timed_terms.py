"""The parts of a step whose rates were measured alone on this model of GPU.

They take the place of work over a peak rate (``step_terms.py``), and have factors of their own. The
name of an exchange says whether it runs alone, so that its factor is near 1, or beside computation,
which hides a part of it. The numbers of exchanges are those of the torch backend:

- A layer with tensor parallelism and its sequence cut gathers 6 times and scatters 4 times: twice
  each forward; backward it gathers both gradients and, because only slices are kept, both inputs
  again (``trainers/native/tensor_parallel.py``). Else it all-reduces 4 times. Full recomputation
  does the forward ones again.
- ZeRO-3 gathers a layer's weights twice in bf16 and scatters its gradients once in fp32, as
  ``trainers/native/sharding.py`` says. The other stages scatter gradients in fp32 and
  gather weights in bf16 once a step; stage 0 all-reduces gradients, and stage 2 scatters them in
  the passes before, too.
- Experts exchange tokens 4 times, and never beside computation.

A group that reaches beyond a node was not measured, nor one of a size without a line. Replicas of
spread experts form two groups, and keep the usual part.
"""

from __future__ import annotations

from workflow_lib.projection import step_terms
from workflow_lib.projection.layouts import Layout
from workflow_lib.projection.part_times import OPTIMISER, Rates

#: of exchanges, by whether compute runs beside them
PASS_ALONE = ("tensor alone", "gather alone", "expert alone", "send alone")
PASS_BESIDE = ("tensor beside", "gather beside", "send beside")
STEP_ALONE, STEP_BESIDE, OPTIMISER_ALONE = "reduce alone", "reduce beside", "optimiser alone"
PASS_PARTS = (*PASS_ALONE, *PASS_BESIDE)
STEP_PARTS = (STEP_ALONE, STEP_BESIDE, OPTIMISER_ALONE)
EXCHANGES = (*PASS_PARTS, STEP_ALONE, STEP_BESIDE)

#: bytes of a gradient that the torch backend reduces
_GRADIENT_BYTES = 4
#: bytes of a weight that the optimiser of one replica reads and writes, and of them those that
#: count for all weights of a rank even if replicas share the states
_OPTIMISER_BYTES, _OF_ALL_BYTES = 26.0, 6.0


def measured(layout: Layout, rates: Rates) -> dict[str, float]:
    """Seconds of parts in a step: of those that were measured, and 0 for those whose place they
    take (for the optimiser, what is left of it)."""
    passes = layout.bubble * (1 + layout.evaluation)
    layers = passes * layout.layers_of_ranks[step_terms.slowest_rank(layout)]
    parts: dict[str, float] = {}
    beside = "beside" if layout.overlap else "alone"
    for part, name, times, seconds in (
        ("tensor", f"tensor {beside}", layers, _tensor_s(layout, rates)),
        ("gather", f"gather {beside}", layers, _gather_s(layout, rates)),
        ("expert", "expert alone", layers, _expert_s(layout, rates)),
        ("send", f"send {beside}", passes, _send_s(layout, rates)),
        ("reduce", f"reduce {beside}", 1.0, _reduce_s(layout, rates)),
    ):
        if seconds is not None:
            parts |= {part: 0.0, name: times * seconds}
    return parts | _optimiser(layout, rates)


def _tensor_s(layout: Layout, rates: Rates) -> float | None:
    """Seconds of a layer's exchanges in a micro-batch."""
    ranks = layout.tp
    if ranks == 1 or ranks > layout.machine.gpus_per_node:
        return None
    tokens = layout.micro_batch * layout.length_of_rank(layout.sequence_length)
    part = step_terms.ELEMENT_BYTES * tokens * layout.shape.hidden * (ranks - 1) / ranks
    again = layout.recomputation == "full"
    if not layout.sequence_parallel:
        calls = 4 + 2 * again
        return _line(layout, rates, "all-reduce", ranks, calls, 2 * part)
    return _sum(
        _line(layout, rates, "all-gather", ranks, 6 + 2 * again, part),
        _line(layout, rates, "reduce-scatter", ranks, 4 + 2 * again, part),
    )


def _gather_s(layout: Layout, rates: Rates) -> float | None:
    """Seconds of a layer's exchanges in a micro-batch of ZeRO-2 or 3."""
    replicas, before = _replicas(layout), step_terms.scattered_before(layout)
    if replicas is None or layout.sharding < 2 or (layout.sharding == 2 and not before):
        return None
    part = step_terms.layer_held(layout) * (replicas - 1) / replicas
    if layout.sharding == 2:
        return _line(layout, rates, "reduce-scatter", replicas, before, _GRADIENT_BYTES * part)
    return _sum(
        _line(layout, rates, "all-gather", replicas, 2, step_terms.ELEMENT_BYTES * part),
        _line(layout, rates, "reduce-scatter", replicas, 1, _GRADIENT_BYTES * part),
    )


def _reduce_s(layout: Layout, rates: Rates) -> float | None:
    """Seconds of the exchange between replicas in a step that no computation hides."""
    replicas = _replicas(layout)
    if layout.sharding == 3 or replicas is None:
        return None
    # A unit of FSDP2 is a layer; a unit's part of what all of them exchange:
    units = max(layout.layers_of_ranks)
    part = step_terms.held_parameters(layout) * (replicas - 1) / replicas / units
    if layout.sharding == 0:
        sums = _line(layout, rates, "all-reduce", replicas, units, 2 * _GRADIENT_BYTES * part)
        return None if sums is None else step_terms.not_hidden_s(layout, sums, 0.0)
    gradients = _line(layout, rates, "reduce-scatter", replicas, units, _GRADIENT_BYTES * part)
    weights = _line(layout, rates, "all-gather", replicas, units, step_terms.ELEMENT_BYTES * part)
    if gradients is None or weights is None:
        return None
    return step_terms.not_hidden_s(layout, gradients, weights)


def _expert_s(layout: Layout, rates: Rates) -> float | None:
    """Seconds of a layer's exchanges of tokens in a micro-batch."""
    if layout.ep == 1 or layout.expert_span > layout.machine.gpus_per_node:
        return None
    calls = 4 + 2 * (layout.recomputation == "full")
    return _line(layout, rates, "all-to-all", layout.ep, calls, step_terms.expert_bytes(layout) / 4)


def _send_s(layout: Layout, rates: Rates) -> float | None:
    """Seconds of a micro-batch's sends, there and back for each chunk."""
    if layout.pp == 1 or layout.gpus > layout.machine.gpus_per_node:
        return None
    calls = 2 * layout.virtual_stages
    return _line(layout, rates, "send/recv", 2, calls, step_terms.send_bytes(layout) / calls)


def _optimiser(layout: Layout, rates: Rates) -> dict[str, float]:
    replicas = layout.copies
    held = step_terms.held_parameters(layout)
    own = held / (replicas if layout.sharding else 1)
    seconds = _line(layout, rates, OPTIMISER, 1, 1, _OPTIMISER_BYTES * own)
    if seconds is None:
        return {}
    left = _OF_ALL_BYTES * (held - own) / layout.machine.memory_bytes_per_s
    return {"optimiser": left, OPTIMISER_ALONE: seconds}


def _replicas(layout: Layout) -> int | None:
    """The ranks that hold the same weights; None if they are on several nodes, or alone, or if
    experts are spread over them."""
    replicas = layout.copies
    within = replicas * layout.tp <= layout.machine.gpus_per_node
    return replicas if within and replicas > 1 and layout.ep == 1 else None


def _line(
    layout: Layout, rates: Rates, part: str, ranks: int, calls: float, bytes_of_call: float
) -> float | None:
    return rates.seconds(layout.machine.gpu, part, ranks, calls, calls * bytes_of_call)


def _sum(*seconds: float | None) -> float | None:
    known = [second for second in seconds if second is not None]
    return sum(known) if len(known) == len(seconds) else None
