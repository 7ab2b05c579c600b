"""Which tokens go to which expert, the order of the experts' rows, and the loss that
balances load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The order of the experts' rows: all of the first expert, all of the second, …

    A choice is one of a token's k experts; choice c belongs to token c // k. Rows and choices
    correspond one to one, except padded rows and dropped choices. ``padded`` and ``dropped`` are
    None if there can be none.
    """

    #: the choice of each row, [rows]; any choice if the row is padded
    choice: Tensor
    #: the row of each choice, [tokens · k]; any row if the choice was dropped
    row: Tensor
    #: number of rows of each expert, [experts]; None if all have equally many
    counts: Tensor | None
    padded: Tensor | None = None
    dropped: Tensor | None = None

    def spread(self, tokens: Tensor) -> Tensor:
        """Copy tokens, [tokens, size], into the experts' rows, [rows, size]."""
        per_token = len(self.row) // len(tokens)
        return _take(
            tokens, self.choice // per_token, self.padded, self.row, self.dropped, per_token
        )

    def collect(self, rows: Tensor) -> Tensor:
        """Put the experts' results, [rows, size], into the order of the choices, [tokens · k,
        size]."""
        return _take(rows, self.row, self.dropped, self.choice, self.padded, 1)


def dropless_rows(chosen: Tensor, experts: int) -> Rows:
    """Give every expert all rows that the router sends to it; ``chosen`` is [tokens, k]."""
    flat = chosen.flatten()
    choice = flat.argsort(stable=True)
    counts = flat.new_zeros(experts).scatter_add_(0, flat, torch.ones_like(flat))
    return Rows(choice, inverse(choice), counts)


def balanced_rows(chosen: Tensor, probabilities: Tensor) -> Rows:
    """Give every expert ceil(tokens · k / experts) rows: a capacity factor of 1 (arXiv 2101.03961).

    If more tokens chose an expert, it drops those to which the router gave it the lowest
    probability. If fewer did, it gets rows of zeros. ``chosen`` is [tokens, k], ``probabilities``
    [tokens, experts]. All sizes are known beforehand, so nothing waits for the device.
    """
    tokens, per_token = chosen.shape
    experts = probabilities.shape[1]
    capacity = -(-tokens * per_token // experts)
    choices = torch.arange(tokens * per_token, device=chosen.device).view_as(chosen)
    choice_of = choices.new_zeros(tokens, experts).scatter_(1, chosen, choices)
    wanted = torch.full_like(probabilities, -1.0)
    wanted.scatter_(1, chosen, probabilities.gather(1, chosen))
    best, token = wanted.topk(capacity, dim=0)  # [capacity, experts]
    choice = choice_of.gather(0, token).t().flatten()
    padded = best.t().flatten() < 0
    # Padded rows write to one extra place behind those of the choices.
    row = choices.new_full((choices.numel() + 1,), -1)
    row[choice.masked_fill(padded, choices.numel())] = torch.arange(
        len(choice), device=chosen.device
    )
    row = row[:-1]
    dropped = row < 0
    return Rows(choice, row.masked_fill(dropped, 0), None, padded, dropped)


@dataclass(frozen=True)
class Choices:
    """How often a rank's routers chose an expert for a token, and how many choices were dropped."""

    made: int
    dropped: int


class ChoiceCounter:
    """Counts a layer's choices on its device, without waiting for it.

    If the layer is computed again in the backward pass, its choices may be counted twice, those
    made and those dropped alike.
    """

    def __init__(self, device: torch.device) -> None:
        #: made and dropped, as integers, which engines do not cast
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)

    def count(self, rows: Rows) -> None:
        """Count the choices of a layer's rows."""
        _count(rows.row, rows.dropped, self._counts)

    @staticmethod
    def take(counters: Sequence[ChoiceCounter]) -> Choices:
        """The counts of several counters since the last call, added up; waits for the
        device once."""
        made, dropped = torch.stack([counter._counts for counter in counters]).sum(dim=0).tolist()
        for counter in counters:
            counter._counts.zero_()
        return Choices(made, dropped)


# An operator of torch, so that a compiler does not trace into it and checkpointing ignores it.
@torch.library.custom_op("triptych::count_choices", mutates_args=("counts",))
def _count(row: Tensor, dropped: Tensor | None, counts: Tensor) -> None:
    counts[0] += row.numel()
    if dropped is not None:
        counts[1] += dropped.sum()


@_count.register_fake
def _(row: Tensor, dropped: Tensor | None, counts: Tensor) -> None:
    return None


def reorder(rows: Tensor, order: Tensor) -> Tensor:
    """The rows in another order: row i of the result is row ``order[i]``."""
    return _take(rows, order, None, inverse(order), None, 1)


def inverse(order: Tensor) -> Tensor:
    """The permutation that undoes ``order``."""
    result = torch.empty_like(order)
    result[order] = torch.arange(len(order), device=order.device)
    return result


def balancing_loss(logits: Tensor, chosen: Tensor) -> Tensor:
    """The number of experts times the sum over experts of their share of choices times their mean
    probability.

    It is equations 4 to 6 of arXiv 2101.03961 without the coefficient, and counts each of a token's
    k choices. It is k if the router is even. ``logits`` is [tokens, experts] in fp32, ``chosen``
    [tokens, k].
    """
    tokens, experts = logits.shape
    flat = chosen.flatten()
    counts = logits.new_zeros(experts).scatter_add_(
        0, flat, torch.ones_like(flat, dtype=logits.dtype)
    )
    return experts / tokens * (counts * logits.softmax(dim=-1).mean(dim=0)).sum()


def attach(x: Tensor, loss: Tensor, factor: float) -> Tensor:
    """Return x; in the backward pass add ``factor`` times the gradient of ``loss`` to the rest.

    So a loss inside of a layer takes part in the training, whatever passes the activations on.
    """
    result: Tensor = _Attach.apply(x, loss, factor)  # type: ignore[no-untyped-call]
    return result


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, loss: Tensor, factor: float) -> Tensor:
        context.factor = factor
        context.like = loss.dtype, loss.device
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        dtype, device = context.like
        return gradients[0], torch.full((), context.factor, dtype=dtype, device=device), None


class _Take(torch.autograd.Function):
    """Rows by their index, where each source is used at most ``times`` times.

    The backward pass reads by the index of the other direction. torch's own would have to add up
    gradients at indices that it cannot know to be distinct.
    """

    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        index: Tensor,
        missing: Tensor | None,
        back: Tensor,
        lost: Tensor | None,
        times: int,
    ) -> Tensor:
        context.save_for_backward(back, lost)
        context.times = times
        return _rows_at(x, index, missing)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back, lost = context.saved_tensors
        total = _rows_at(gradients[0], back, lost)
        if context.times > 1:
            total = total.view(-1, context.times, total.shape[1]).sum(dim=1)
        return total, None, None, None, None, None


def _take(
    x: Tensor,
    index: Tensor,
    missing: Tensor | None,
    back: Tensor,
    lost: Tensor | None,
    times: int,
) -> Tensor:
    result: Tensor = _Take.apply(x, index, missing, back, lost, times)  # type: ignore[no-untyped-call]
    return result


def _rows_at(x: Tensor, index: Tensor, missing: Tensor | None) -> Tensor:
    rows = x.index_select(0, index)
    # Not in place: torch 2.11 compiles that into wrong gradients.
    return rows if missing is None else rows.masked_fill(missing.unsqueeze(-1), 0.0)
