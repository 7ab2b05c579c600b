"""Collectives that autograd can pass through. A group that is None or has one rank does nothing.

Names say what the forward pass does. For tensor parallelism see arXiv 1909.08053, section 3:
``copy_to_group`` is its operator f, ``sum_over_group`` its operator g.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def group_size(group: Group) -> int:
    """Ranks in a group; 1 for None."""
    return 1 if group is None else dist.get_world_size(group)


def group_rank(group: Group) -> int:
    """This rank's number within a group; 0 for None."""
    return 0 if group is None else dist.get_rank(group)


class _CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, group: Group) -> Tensor:
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=context.group)
        return total, None


class _SumOverGroup(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, group: Group) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, rows: Tensor, received: list[int], sent: list[int], group: Group
    ) -> Tensor:
        context.received, context.sent, context.group = received, sent, group
        return _all_to_all(rows, received, sent, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        back = _all_to_all(gradients[0], context.sent, context.received, context.group)
        return back, None, None, None


def _all_to_all(rows: Tensor, received: list[int], sent: list[int], group: Group) -> Tensor:
    output = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(output, rows.contiguous(), received, sent, group=group)
    return output


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """Pass x on; sum its gradient over the group."""
    if group_size(group) == 1:
        return x
    result: Tensor = _CopyToGroup.apply(x, group)  # type: ignore[no-untyped-call]
    return result


def sum_over_group(x: Tensor, group: Group) -> Tensor:
    """Sum x over the group; pass its gradient on."""
    if group_size(group) == 1:
        return x
    result: Tensor = _SumOverGroup.apply(x, group)  # type: ignore[no-untyped-call]
    return result


def exchange(rows: Tensor, received: list[int], sent: list[int], group: Group) -> Tensor:
    """Send ``sent[r]`` consecutive rows to each rank r and receive ``received[r]`` from it.

    ``rows`` is [sum(sent), …]; the result is [sum(received), …], ordered by the sending rank.
    """
    result: Tensor = _Exchange.apply(rows, received, sent, group)  # type: ignore[no-untyped-call]
    return result


class _VocabularyParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor, group: Group) -> Tensor:
        logits = logits.float()
        highest = logits.amax(dim=-1)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        exponentials = (logits - highest.unsqueeze(-1)).exp_()
        total = exponentials.sum(dim=-1)
        dist.all_reduce(total, group=group)
        local = targets - group_rank(group) * logits.shape[-1]
        elsewhere = (local < 0) | (local >= logits.shape[-1])
        local = local.masked_fill(elsewhere, 0)
        target = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1) - highest
        target = target.masked_fill(elsewhere, 0.0)
        dist.all_reduce(target, group=group)
        probabilities = exponentials.div_(total.unsqueeze(-1))
        context.save_for_backward(probabilities, local, elsewhere)
        return total.log() - target

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, elsewhere = context.saved_tensors
        hit = (~elsewhere).to(probabilities.dtype).unsqueeze(-1)
        difference = probabilities.scatter_add(-1, local.unsqueeze(-1), -hit)
        return difference * gradients[0].unsqueeze(-1), None, None


def cross_entropy(logits: Tensor, targets: Tensor, group: Group) -> Tensor:
    """The mean cross-entropy in nats, where each rank of the group holds a slice of the vocabulary.

    ``logits`` is [tokens, vocabulary / group size], ``targets`` [tokens]; computed in fp32.
    """
    if group_size(group) == 1:
        return torch.nn.functional.cross_entropy(logits.float(), targets)
    losses: Tensor = _VocabularyParallelCrossEntropy.apply(logits.float(), targets, group)  # type: ignore[no-untyped-call]
    return losses.mean()
