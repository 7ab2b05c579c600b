"""How the ranks of a tensor-parallel group share activations and products.

Without sequence parallelism every rank holds all activations between the parts. Each part begins
with a copy and ends with an all-reduce (arXiv 1909.08053, section 3). With it each rank holds a
slice of the sequence between the parts. Parts begin by gathering it and end by summing to slices
(arXiv 2205.05198, section 4.2.2).

Only slices are kept for the backward pass, which gathers the input again. With overlap, a gather or
a sum runs during a product: in chunks of the sequence if one needs the other's result, else whole.
Without overlap, each collective is waited for before anything else is computed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from workflow_lib.trainers.native.collectives import (
    Group,
    copy_to_group,
    gather_slices,
    group_rank,
    group_size,
    named_group,
    start_gather,
    start_stacked_sum,
    start_stacking_gather,
    start_sum_to_slices,
    sum_over_group,
    sum_to_slices,
)

#: Number of chunks of the sequence in which a product overlaps with a collective that depends on
#: it. More chunks expose less of the first and last one, but make the products small: on 4×H200,
#: training with two was 6 % faster than with four.
CHUNKS = 2


class TensorParallel:
    """A layer's tensor-parallel group, and the operations that it does in it.

    ``sequence`` says whether activations between the parts are slices of the sequence. ``overlap``
    says whether the collectives then run beside the products.
    """

    def __init__(self, group: Group, sequence: bool = False, overlap: bool = False) -> None:
        self.group, self.size, self.rank = group, group_size(group), group_rank(group)
        self.sequence = sequence and self.size > 1
        self.overlap = overlap

    def enter(self, x: Tensor) -> Tensor:
        """Give all ranks of the group the whole sequence of x, of which each computes a part of a
        sum."""
        return gather_slices(x, self.group) if self.sequence else copy_to_group(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """Sum the ranks' results; with sequence parallelism, keep only this rank's slice of the
        sequence."""
        return sum_to_slices(x, self.group) if self.sequence else sum_over_group(x, self.group)

    def whole(self, parameter: Tensor) -> Tensor:
        """A parameter that every rank holds, for use on what may be a slice of the sequence.

        With sequence parallelism its gradient is summed over the group here, so that no engine has
        to.
        """
        return copy_to_group(parameter, self.group) if self.sequence else parameter

    def column_product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply the whole sequence of x by this rank's rows of a matrix.

        ``x`` is [batch, sequence or its slice, in], ``weight`` [out / ranks, in]; the result is
        [batch, sequence, out / ranks].
        """
        if self.sequence and self.group is not None:
            result: Tensor = _gathered_linear(x, weight, bias, self.group.group_name, self.overlap)
            return result
        return F.linear(copy_to_group(x, self.group), weight, bias)

    def row_product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply x, sliced along its last dimension, by this rank's columns of a matrix, and sum.

        ``x`` is [batch, sequence, in / ranks], ``weight`` [out, in / ranks]; the result is [batch,
        sequence or its slice, out].
        """
        if self.sequence and self.group is not None:
            result: Tensor = _linear_to_slices(x, weight, self.group.group_name, self.overlap)
            return result
        if self.size > 1 and self.group is not None:
            summed: Tensor = _summed_linear(x, weight, self.group.group_name)
            return summed
        return F.linear(x, weight)


def _gathered_product(
    x: Tensor, matrix: Tensor, group: str, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """Multiply the gathered x, [batch, local, in], by ``matrix``, [in, out], chunk by chunk.

    The gathers of later chunks run meanwhile. Returns [batch, sequence, out], and the gathered x if
    ``keep``, else None.
    """
    batch, local, _ = x.shape
    chunks = math.gcd(CHUNKS, local)
    started = [start_stacking_gather(part, group, wait=False) for part in x.chunk(chunks, dim=1)]
    ranks = len(started[0][0])
    product = x.new_empty(batch, ranks, chunks, local // chunks, matrix.shape[1])
    for index, (pieces, finish) in enumerate(started):
        finish()
        for sequence in range(batch):
            # One product for the pieces of all ranks, written to their places in the sequence.
            torch.bmm(
                pieces[:, sequence], matrix.expand(ranks, -1, -1), out=product[sequence, :, index]
            )
    gathered = None
    if keep:
        gathered = torch.stack([pieces for pieces, _ in started], dim=2)
        gathered = gathered.transpose(0, 1).flatten(1, 3)
    return product.flatten(1, 3), gathered


def _product_to_slices(x: Tensor, matrix: Tensor, group: str) -> Tensor:
    """Multiply x, [batch, sequence, in], by ``matrix``, [in, out], and sum, chunk by chunk.

    Each chunk is summed during the next one's product. Returns [batch, local, out].
    """
    batch, sequence, _ = x.shape
    ranks = named_group(group).size()
    chunks = math.gcd(CHUNKS, sequence // ranks)
    x = x.reshape(batch, ranks, chunks, -1, x.shape[-1])
    mine = x.new_empty(chunks, batch, x.shape[3], matrix.shape[1])
    started = []
    for index in range(chunks):
        partial = x.new_empty(ranks, *mine.shape[1:])
        for row in range(batch):
            torch.bmm(x[row, :, index], matrix.expand(ranks, -1, -1), out=partial[:, row])
        # The partial sums must live until they have been sent.
        started.append((partial, start_stacked_sum(partial, mine[index], group, wait=False)))
    for _, finish in started:
        finish()
    return mine.transpose(0, 1).flatten(1, 2)


@torch.library.custom_op("triptych::gathered_linear", mutates_args=())
def _gathered_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: str, overlap: bool
) -> Tensor:
    if not overlap:
        return F.linear(start_gather(x, group, wait=True)(), weight, bias)
    product, _ = _gathered_product(x, weight.t(), group, keep=False)
    return product if bias is None else product.add_(bias)


@torch.library.custom_op("triptych::linear_to_slices", mutates_args=())
def _linear_to_slices(x: Tensor, weight: Tensor, group: str, overlap: bool) -> Tensor:
    if not overlap:
        return start_sum_to_slices(F.linear(x, weight), group, wait=True)()
    return _product_to_slices(x, weight.t(), group)


@torch.library.custom_op("triptych::summed_linear", mutates_args=())
def _summed_linear(x: Tensor, weight: Tensor, group: str) -> Tensor:
    product = F.linear(x, weight)
    dist.all_reduce(product, group=named_group(group))
    return product


@torch.library.custom_op("triptych::gathered_linear_backward", mutates_args=())
def _gathered_linear_backward(
    gradient: Tensor, x: Tensor | None, weight: Tensor, group: str, overlap: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight; the latter is empty if x was not kept."""
    finish_gather = None if x is None else start_gather(x, group, wait=not overlap)
    finish_sum = start_sum_to_slices(gradient @ weight, group, wait=not overlap)
    of_weight = weight.new_empty(0)
    if finish_gather is not None:
        of_weight = gradient.flatten(0, 1).t() @ finish_gather().flatten(0, 1)
    return finish_sum(), of_weight


@torch.library.custom_op("triptych::linear_to_slices_backward", mutates_args=())
def _linear_to_slices_backward(
    gradient: Tensor, x: Tensor | None, weight: Tensor, group: str, overlap: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight; the latter is empty if x was not kept."""
    whole: Tensor | None
    if overlap:
        of_x, whole = _gathered_product(gradient, weight, group, keep=x is not None)
    else:
        whole = start_gather(gradient, group, wait=True)()
        of_x = whole @ weight
    of_weight = weight.new_empty(0)
    if x is not None and whole is not None:
        of_weight = whole.flatten(0, 1).t() @ x.flatten(0, 1)
    return of_x, of_weight


@_gathered_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, group: str, overlap: bool) -> Tensor:
    ranks = named_group(group).size()
    return x.new_empty(x.shape[0], x.shape[1] * ranks, weight.shape[0])


@_linear_to_slices.register_fake
def _(x: Tensor, weight: Tensor, group: str, overlap: bool) -> Tensor:
    ranks = named_group(group).size()
    return x.new_empty(x.shape[0], x.shape[1] // ranks, weight.shape[0])


@_summed_linear.register_fake
def _(x: Tensor, weight: Tensor, group: str) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@_gathered_linear_backward.register_fake
def _(
    gradient: Tensor, x: Tensor | None, weight: Tensor, group: str, overlap: bool
) -> tuple[Tensor, Tensor]:
    of_weight = weight.new_empty(0) if x is None else torch.empty_like(weight)
    length = gradient.shape[1] // named_group(group).size()
    return gradient.new_empty(gradient.shape[0], length, weight.shape[1]), of_weight


@_linear_to_slices_backward.register_fake
def _(
    gradient: Tensor, x: Tensor | None, weight: Tensor, group: str, overlap: bool
) -> tuple[Tensor, Tensor]:
    of_weight = weight.new_empty(0) if x is None else torch.empty_like(weight)
    length = gradient.shape[1] * named_group(group).size()
    return gradient.new_empty(gradient.shape[0], length, weight.shape[1]), of_weight


def _remember(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    *_, ctx.group, ctx.overlap = inputs
    _remember_operands(ctx, inputs, output)


def _remember_operands(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    x, weight, *_ = inputs
    # Never the gathered input; and no input at all if the weight is frozen.
    ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)


def _gathered_linear_gradients(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = context.saved_tensors
    of_x, of_weight = _gathered_linear_backward(gradient, x, weight, context.group, context.overlap)
    of_bias = gradient.sum((0, 1)) if context.needs_input_grad[2] else None
    return of_x, None if x is None else of_weight, of_bias, None, None


def _linear_to_slices_gradients(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = context.saved_tensors
    of_x, of_weight = _linear_to_slices_backward(
        gradient, x, weight, context.group, context.overlap
    )
    return of_x, None if x is None else of_weight, None, None


def _summed_linear_gradients(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = context.saved_tensors
    of_weight = None if x is None else gradient.flatten(0, 1).t() @ x.flatten(0, 1)
    return gradient @ weight, of_weight, None


_gathered_linear.register_autograd(_gathered_linear_gradients, setup_context=_remember)
_linear_to_slices.register_autograd(_linear_to_slices_gradients, setup_context=_remember)

_summed_linear.register_autograd(_summed_linear_gradients, setup_context=_remember_operands)

#: the operators as torch dispatches them, without those of the backward pass
OPERATORS = [
    torch.ops.triptych.gathered_linear.default,
    torch.ops.triptych.linear_to_slices.default,
    torch.ops.triptych.summed_linear.default,
]
