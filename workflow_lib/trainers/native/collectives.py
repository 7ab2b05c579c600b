"""Collectives that support autograd. A group that is None or has one rank does nothing.

Names say what the forward pass does. For tensor parallelism see arXiv 1909.08053, section 3:
``copy_to_group`` is its operator f, ``sum_over_group`` its operator g. With sequence parallelism
(arXiv 2205.05198, section 4.2.2) ``gather_slices`` and ``sum_to_slices`` take their place.

Each is one operator of torch, so that selective recomputation can keep its result and torch.compile
need not trace into it. The operators take groups by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

Group = dist.ProcessGroup | None


def group_size(group: Group) -> int:
    """The number of ranks in a group; 1 for None."""
    return 1 if group is None else dist.get_world_size(group)


def group_rank(group: Group) -> int:
    """This rank's number within a group; 0 for None."""
    return 0 if group is None else dist.get_rank(group)


def named_group(name: str) -> dist.ProcessGroup:
    """The group with this name, as operators refer to it."""
    group: dist.ProcessGroup = distributed_c10d._resolve_process_group(name)  # type: ignore
    return group


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """Return x; in the backward pass sum its gradient over the group."""
    if group is None or group_size(group) == 1:
        return x
    result: Tensor = _CopyToGroup.apply(x, group.group_name)  # type: ignore[no-untyped-call]
    return result


def sum_over_group(x: Tensor, group: Group) -> Tensor:
    """Sum x over the group; the backward pass returns the gradient as it is."""
    if group is None or group_size(group) == 1:
        return x
    result: Tensor = _sum(x, group.group_name)
    return result


def gather_slices(x: Tensor, group: Group) -> Tensor:
    """Join the ranks' slices of the sequence; the backward pass sums the gradient to slices.

    ``x`` is [batch, sequence / group size, …], the result [batch, sequence, …].
    """
    if group is None or group_size(group) == 1:
        return x
    result: Tensor = _gather(x, group.group_name)
    return result


def sum_to_slices(x: Tensor, group: Group) -> Tensor:
    """Sum x over the group and keep this rank's slice of the sequence; the backward pass joins
    slices.

    ``x`` is [batch, sequence, …], the result [batch, sequence / group size, …].
    """
    if group is None or group_size(group) == 1:
        return x
    result: Tensor = _sum_to_slices(x, group.group_name)
    return result


def exchange(
    rows: Tensor, received: Sequence[int], sent: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """Send ``sent[r]`` consecutive rows to each rank r and receive ``received[r]`` from it.

    ``rows`` is [sum(sent), …]; the result is [sum(received), …], ordered by the sending rank.
    """
    result: Tensor = _exchange(rows, received, sent, group.group_name)
    return result


# ------------------------------------------------------- collectives that have been started


def start_gather(x: Tensor, group: str, wait: bool) -> Callable[[], Tensor]:
    """Start to gather [batch, local, …] along dimension 1; calling the result returns the whole.

    Unless ``wait``, the collective runs beside what is called next.
    """
    pieces, finish = start_stacking_gather(x, group, wait)

    def result() -> Tensor:
        finish()
        # With one sequence this is a view.
        return pieces.transpose(0, 1).flatten(1, 2)

    return result


def start_stacking_gather(x: Tensor, group: str, wait: bool) -> tuple[Tensor, Callable[[], object]]:
    """Start to gather x into [ranks, *x.shape]; calling the second result waits for it."""
    ranks = named_group(group)
    x = x.contiguous()
    pieces = x.new_empty(ranks.size(), *x.shape)
    work = dist.all_gather_into_tensor(pieces.flatten(0, 1), x, group=ranks, async_op=not wait)
    return pieces, _nothing if work is None else work.wait


def start_sum_to_slices(x: Tensor, group: str, wait: bool) -> Callable[[], Tensor]:
    """Start to sum [batch, sequence, …] over the group; calling the result returns this rank's
    slice."""
    ranks = named_group(group).size()
    stacked = x.view(x.shape[0], ranks, -1, *x.shape[2:]).transpose(0, 1).contiguous()
    mine = torch.empty_like(stacked[0])
    finish = start_stacked_sum(stacked, mine, group, wait)

    def result() -> Tensor:
        finish()
        return mine

    return result


def start_exchange(
    rows: Tensor, arrived: Tensor, received: Sequence[int], sent: Sequence[int], group: str
) -> Callable[[], Tensor]:
    """Start an exchange as in ``exchange`` that writes to ``arrived``; calling the result waits for
    it and returns ``arrived``. torch keeps both tensors until then."""
    work = dist.all_to_all_single(
        *(arrived, rows.contiguous(), list(received), list(sent)),
        group=named_group(group),
        async_op=True,
    )

    def result() -> Tensor:
        work.wait()
        return arrived

    return result


def start_stacked_sum(
    stacked: Tensor, mine: Tensor, group: str, wait: bool
) -> Callable[[], object]:
    """Start to sum [ranks, …] over the group into this rank's part, ``mine``, of shape [...];
    calling the result waits for it."""
    ranks = named_group(group)
    work = dist.reduce_scatter_tensor(mine, stacked.flatten(0, 1), group=ranks, async_op=not wait)
    return _nothing if work is None else work.wait


def _nothing() -> None:
    """Do nothing: the collective has already been waited for."""


# ------------------------------------------------------- the operators


class _CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, group: str) -> Tensor:
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sum(gradients[0], context.group), None


@torch.library.custom_op("triptych::sum", mutates_args=())
def _sum(x: Tensor, group: str) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=named_group(group))
    return total


@torch.library.custom_op("triptych::gather", mutates_args=())
def _gather(x: Tensor, group: str) -> Tensor:
    return start_gather(x, group, wait=True)()


@torch.library.custom_op("triptych::sum_to_slices", mutates_args=())
def _sum_to_slices(x: Tensor, group: str) -> Tensor:
    return start_sum_to_slices(x, group, wait=True)()


@torch.library.custom_op("triptych::exchange", mutates_args=())
def _exchange(rows: Tensor, received: Sequence[int], sent: Sequence[int], group: str) -> Tensor:
    output = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(output, rows.contiguous(), received, sent, group=named_group(group))
    return output


@_sum.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_gather.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] * named_group(group).size(), *x.shape[2:])


@_sum_to_slices.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // named_group(group).size(), *x.shape[2:])


@_exchange.register_fake
def _(rows: Tensor, received: Sequence[int], sent: Sequence[int], group: str) -> Tensor:
    return rows.new_empty(sum(received), *rows.shape[1:])


def _remember_group(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    ctx.group = inputs[1]


def _remember_exchange(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    _, ctx.received, ctx.sent, ctx.group = inputs


_sum.register_autograd(lambda _, gradient: (gradient, None), setup_context=_remember_group)
_gather.register_autograd(
    lambda context, gradient: (_sum_to_slices(gradient, context.group), None),
    setup_context=_remember_group,
)
_sum_to_slices.register_autograd(
    lambda context, gradient: (_gather(gradient, context.group), None),
    setup_context=_remember_group,
)
_exchange.register_autograd(
    lambda context, gradient: (
        _exchange(gradient, context.sent, context.received, context.group),
        *(None, None, None),
    ),
    setup_context=_remember_exchange,
)

#: the operators as torch dispatches them
OPERATORS = [
    torch.ops.triptych.sum.default,
    torch.ops.triptych.gather.default,
    torch.ops.triptych.sum_to_slices.default,
    torch.ops.triptych.exchange.default,
]
