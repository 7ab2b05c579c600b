"""The cross-entropy of a large vocabulary, which may be spread over a tensor-parallel group.

For the backward pass it keeps the logits, in their own precision, and two numbers per token. fp32
copies exist only for a few rows at a time, or not at all if compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workflow_lib.trainers.native.collectives import Group, group_rank, group_size

#: how many logits are held in fp32 at once: 256 MiB
FP32_LOGITS = 2**26


def cross_entropy(logits: Tensor, targets: Tensor, group: Group, compiled: bool = False) -> Tensor:
    """The mean cross-entropy in nats, where each rank of the group holds a slice of the vocabulary.

    ``logits`` is [tokens, vocabulary / group size], ``targets`` [tokens]. It is computed in fp32;
    with ``compiled``, by kernels that torch.compile fuses.
    """
    losses: Tensor = _CrossEntropy.apply(logits, targets, group, compiled)  # type: ignore[no-untyped-call]
    return losses.mean()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, logits: Tensor, targets: Tensor, group: Group, compiled: bool
    ) -> Tensor:
        sums = (_compiled(_logsumexp) if compiled else _logsumexp_by_rows)(logits)
        # A target that another rank holds becomes −1, which is no column.
        local = targets - group_rank(group) * logits.shape[-1]
        here = (local >= 0) & (local < logits.shape[-1])
        local = torch.where(here, local, -1)
        of_targets = logits.gather(-1, local.clamp(min=0).unsqueeze(-1)).squeeze(-1).float()
        of_targets = of_targets.masked_fill_(~here, 0.0)
        if group_size(group) > 1:
            sums, of_targets = _over_ranks(sums, of_targets, group)
        context.save_for_backward(logits, sums, local)
        context.compiled = compiled
        return sums - of_targets

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        gradient = _compiled(_gradient) if context.compiled else _gradient_by_rows
        logits, sums, local = context.saved_tensors
        return gradient(logits, sums, local, gradients[0]), None, None, None


def _over_ranks(sums: Tensor, of_targets: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Combine the ranks' slices of the vocabulary: log-sums, and the targets' logits."""
    highest = sums.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    both = torch.stack(((sums - highest).exp_(), of_targets))
    dist.all_reduce(both, group=group)
    return both[0].log() + highest, both[1]


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=False)


def _logsumexp(logits: Tensor) -> Tensor:
    return logits.float().logsumexp(dim=-1)


def _gradient(logits: Tensor, sums: Tensor, local: Tensor, scales: Tensor) -> Tensor:
    """(softmax − 1 at the target) times the row's scale."""
    probabilities = (logits.float() - sums.unsqueeze(-1)).exp()
    columns = torch.arange(logits.shape[-1], device=logits.device)
    hits = columns == local.unsqueeze(-1)
    return ((probabilities - hits.float()) * scales.unsqueeze(-1)).to(logits.dtype)


def _logsumexp_by_rows(logits: Tensor) -> Tensor:
    sums = logits.new_empty(len(logits), dtype=torch.float32)
    for rows in _row_slices(logits):
        # One kernel instead of four for a sum of exponentials: log-softmax is x − logsumexp.
        shifted = logits[rows].log_softmax(dim=-1, dtype=torch.float32)[:, 0]
        torch.sub(logits[rows, 0].float(), shifted, out=sums[rows])
    return sums


def _gradient_by_rows(logits: Tensor, sums: Tensor, local: Tensor, scales: Tensor) -> Tensor:
    result = torch.empty_like(logits)
    hits = (local >= 0).float().mul_(scales).neg_().unsqueeze(-1)
    columns = local.clamp(min=0).unsqueeze(-1)
    for rows in _row_slices(logits):
        # Converted to fp32 first, because a kernel of mixed precisions takes twice as long as both.
        # A copy, because logits in fp32 must not be changed here.
        difference = logits[rows].to(torch.float32, copy=True)
        difference.sub_(sums[rows].unsqueeze(-1)).exp_()
        difference.mul_(scales[rows].unsqueeze(-1))
        result[rows] = difference.scatter_add_(-1, columns[rows], hits[rows])
    return result


def _row_slices(logits: Tensor) -> list[slice]:
    rows, vocabulary = logits.shape
    step = max(1, FP32_LOGITS // vocabulary)
    return [slice(start, start + step) for start in range(0, rows, step)]
