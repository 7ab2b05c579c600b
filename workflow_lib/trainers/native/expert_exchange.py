"""Experts' products beside the exchange of their rows between ranks, for cells with overlap.

Each rank's experts take their rows one after the other. While one expert's products run, the next
one's rows arrive and the last one's results leave, so that no product becomes smaller. In the
backward pass the gradients of weights come last, beside the gradients of rows that leave. Only the
first expert's rows and the last one's results have nothing to run beside.

All of it is one operator of torch, like ``collectives``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workflow_lib.trainers.native.collectives import exchange, start_exchange
from workflow_lib.trainers.native.feed_forward import pointwise

#: where the rows of one of a rank's experts lie, and how many of them belong to each rank
Piece = tuple[slice, list[int]]


@dataclass(frozen=True)
class ExchangeBeside:
    """Sends rows to the ranks of their experts and brings results back, beside the products.

    Rows are sorted by an order of its own: by the places of experts on their ranks, then by rank.
    So the rows of one expert of each rank lie together.
    """

    group: dist.ProcessGroup
    #: of the layer, over all ranks
    experts: int
    #: whether the inputs of the experts' second matrix are kept, or computed again
    keep_inner: bool
    #: whether torch.compile fuses what lies between the products
    compiled: bool

    def order(self, of_experts: Tensor) -> Tensor:
        """The last dimension, [experts], in the order of rows."""
        by_rank = of_experts.view(*of_experts.shape[:-1], self.group.size(), -1)
        return by_rank.transpose(-1, -2).flatten(-2)

    def number(self, expert: Tensor) -> Tensor:
        """The number of each expert in the order of rows."""
        ranks = self.group.size()
        here = self.experts // ranks
        return expert % here * ranks + expert // here

    def __call__(
        self, rows: Tensor, counts: Tensor | None, gate_up: Tensor, down: Tensor
    ) -> Tensor:
        """The experts' results, [rows, hidden], in the order of the rows.

        ``counts`` says how many of the rows each expert gets, [experts]; None if all get equally
        many. ``gate_up``, [experts here, 2 · ffn, hidden], and ``down``, [experts here, hidden,
        ffn], belong to this rank.
        """
        sent = received = [len(rows) // self.experts] * self.experts
        if counts is not None:
            ranks = self.group.size()
            ones = [1] * ranks
            arriving = exchange(counts.view(-1, ranks).t(), ones, ones, self.group).t()
            sent, received = torch.stack((counts, arriving.flatten())).tolist()
        keep = gate_up.requires_grad
        outputs: list[Tensor] = _forward(
            *(rows, gate_up, down, sent, received, self.group.group_name),
            *(keep, keep and self.keep_inner, self.compiled),
        )
        return outputs[0]


def _pieces(counts: Sequence[int], experts: int) -> list[Piece]:
    """The piece of each of a rank's experts."""
    ranks = len(counts) // experts
    by_expert = [list(counts[start : start + ranks]) for start in range(0, len(counts), ranks)]
    ends = accumulate(map(sum, by_expert), initial=0)
    pieces = zip(pairwise(ends), by_expert, strict=True)
    return [(slice(*both), of_ranks) for both, of_ranks in pieces]


def _start_arrivals(
    rows: Tensor, leaving: list[Piece], arriving: list[Piece], group: str
) -> list[Callable[[], Tensor]]:
    """Start to send all experts their rows; calling a result waits for the rows of one expert."""
    return [
        start_exchange(rows[there], rows.new_empty(sum(here), rows.shape[1]), here, gone, group)
        for (there, gone), (_, here) in zip(leaving, arriving, strict=True)
    ]


def _empty_gradients(gate_up: Tensor, down: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Room for the gradients of both matrices; none without ``keep``."""
    if keep:
        return torch.empty_like(gate_up), torch.empty_like(down)
    return gate_up.new_empty(0), down.new_empty(0)


@torch.library.custom_op("triptych::exchanged_experts", mutates_args=())
def _forward(
    rows: Tensor,
    gate_up: Tensor,
    down: Tensor,
    sent: Sequence[int],
    received: Sequence[int],
    group: str,
    keep: bool,
    keep_inner: bool,
    compiled: bool,
) -> list[Tensor]:
    """The results, and for each expert what the backward pass needs: its rows if ``keep``, the
    product with ``gate_up``, and the input of ``down`` if ``keep_inner``."""
    apply_gate, _ = pointwise(compiled)
    rows = rows.contiguous()
    leaving, arriving = _pieces(sent, len(down)), _pieces(received, len(down))
    arrivals = _start_arrivals(rows, leaving, arriving, group)
    returned = torch.empty_like(rows)
    kept, departures = [], []
    for expert, ((there, gone), (_, here)) in enumerate(zip(leaving, arriving, strict=True)):
        arrived = arrivals[expert]()
        wide = arrived @ gate_up[expert].t()
        inner = apply_gate(wide)
        kept += [*([arrived] if keep else []), wide, *([inner] if keep_inner else [])]
        product = inner @ down[expert].t()
        departures.append(start_exchange(product, returned[there], gone, here, group))
    for finish in departures:
        finish()
    return [returned, *kept]


@torch.library.custom_op("triptych::exchanged_experts_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    kept: Sequence[Tensor],
    gate_up: Tensor,
    down: Tensor,
    sent: Sequence[int],
    received: Sequence[int],
    group: str,
    keep: bool,
    keep_inner: bool,
    compiled: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the rows and of both matrices; these are empty if rows were not kept."""
    apply_gate, apply_gate_gradients = pointwise(compiled)
    gradient = gradient.contiguous()
    leaving, arriving = _pieces(sent, len(down)), _pieces(received, len(down))
    arrivals = _start_arrivals(gradient, leaving, arriving, group)
    of_rows = torch.empty_like(gradient)
    of_matrices, departures = [], []
    step = 1 + keep + keep_inner
    for expert, ((there, gone), (_, here)) in enumerate(zip(leaving, arriving, strict=True)):
        mine = kept[expert * step : (expert + 1) * step]
        wide = mine[keep]
        arrived = arrivals[expert]()
        of_wide = apply_gate_gradients(arrived @ down[expert], wide)
        departures.append(
            start_exchange(of_wide @ gate_up[expert], of_rows[there], gone, here, group)
        )
        if keep:
            of_matrices.append((arrived, of_wide, wide, mine))
    of_gate_up, of_down = _empty_gradients(gate_up, down, keep)
    for expert, (arrived, of_wide, wide, mine) in enumerate(of_matrices):
        torch.mm(of_wide.t(), mine[0], out=of_gate_up[expert])
        inner = mine[2] if keep_inner else apply_gate(wide)
        torch.mm(arrived.t(), inner, out=of_down[expert])
    for finish in departures:
        finish()
    return of_rows, of_gate_up, of_down


@_forward.register_fake
def _(
    rows: Tensor,
    gate_up: Tensor,
    down: Tensor,
    sent: Sequence[int],
    received: Sequence[int],
    group: str,
    keep: bool,
    keep_inner: bool,
    compiled: bool,
) -> list[Tensor]:
    outputs = [rows.new_empty(rows.shape)]
    for _, here in _pieces(received, len(down)):
        widths = [*([rows.shape[1]] if keep else []), gate_up.shape[1]]
        widths += [down.shape[2]] if keep_inner else []
        outputs += [rows.new_empty(sum(here), width) for width in widths]
    return outputs


@_backward.register_fake
def _(
    gradient: Tensor,
    kept: Sequence[Tensor],
    gate_up: Tensor,
    down: Tensor,
    sent: Sequence[int],
    received: Sequence[int],
    group: str,
    keep: bool,
    keep_inner: bool,
    compiled: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return gradient.new_empty(gradient.shape), *_empty_gradients(gate_up, down, keep)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, gate_up, down, *ctx.how = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(gate_up, down, *output[1:])


def _gradients(context: Any, gradients: list[Tensor]) -> tuple[Tensor | None, ...]:
    gate_up, down, *kept = context.saved_tensors
    of_rows, of_gate_up, of_down = _backward(gradients[0], kept, gate_up, down, *context.how)
    trained = context.how[3]
    nothing = [None] * len(context.how)
    return of_rows, of_gate_up if trained else None, of_down if trained else None, *nothing


_forward.register_autograd(_gradients, setup_context=_remember)

#: the operator as torch dispatches it, without that of the backward pass
OPERATORS = [torch.ops.triptych.exchanged_experts.default]
