"""Products of many experts' rows with many experts' matrices.

Each is one operator of torch, so that selective recomputation keeps its result. For the backward
pass the parameter itself is kept, which ZeRO-3 can free in between.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from workflow_lib.trainers.native.device import on_gpu

#: the public name from torch 2.10 on, else the private one before
_grouped_mm: Callable[..., Tensor] = getattr(
    torch.nn.functional, "grouped_mm", getattr(torch, "_grouped_mm", None)
)  # type: ignore[assignment]


def expert_product(rows: Tensor, matrices: Tensor, counts: Tensor | None) -> Tensor:
    """Multiply each expert's rows with the transpose of its matrix.

    ``rows`` is [rows, in], sorted by expert. ``matrices`` is [experts, out, in]. ``counts`` is the
    number of rows of each expert, [experts], or None if all have equally many. The result is [rows,
    out].
    """
    grouped = counts is not None and has_grouped_product(rows.device, rows.dtype)
    result: Tensor = _product(rows, matrices, counts, grouped)
    return result


# A compiler takes the result as a constant, and does not trace into the function.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_grouped_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether one kernel can do all experts' products on a device; this is tried once."""
    return _tried(device, dtype)


@functools.cache
def _tried(device: torch.device, dtype: torch.dtype) -> bool:
    if not on_gpu(device) or dtype != torch.bfloat16 or _grouped_mm is None:
        return False
    # Small integers, whose products and sums are exact in bf16; one expert has no rows.
    numbers = torch.arange(2 * 48 * 64 + 3 * 64 * 64, device=device) * 7 % 11 % 3 - 1
    rows, gradient = numbers[: 2 * 48 * 64].view(2, 48, 64).to(dtype)
    matrices = numbers[2 * 48 * 64 :].view(3, 64, 64).to(dtype)
    counts = torch.tensor([13, 0, 35], device=device)
    try:
        product = _product(rows, matrices, counts, True)
        gradients = _product_backward(gradient, rows, matrices, counts, True)
    except RuntimeError as reason:
        warnings.warn(
            f"experts' products run one after the other: no grouped GEMM ({reason})", stacklevel=2
        )
        return False
    expected = _product(rows, matrices, counts, False)
    expected_gradients = _product_backward(gradient, rows, matrices, counts, False)
    right = all(
        torch.equal(one, other)
        for one, other in zip((product, *gradients), (expected, *expected_gradients), strict=True)
    )
    if not right:
        warnings.warn(
            "experts' products run one after the other: grouped GEMM gives wrong results here",
            stacklevel=2,
        )
    return right


def _times(rows: Tensor, matrices: Tensor, counts: Tensor | None, grouped: bool) -> Tensor:
    """Each expert's rows, [rows, in], times its matrix of [experts, in, out]; the result is [rows,
    out]."""
    if counts is None:
        stacked = rows.view(len(matrices), -1, rows.shape[1])
        return torch.bmm(stacked, matrices).flatten(0, 1)
    if grouped:
        return _grouped_mm(rows, matrices, offs=_ends(counts))
    product = rows.new_empty(len(rows), matrices.shape[2])
    sizes = counts.tolist()
    parts = zip(torch.split(rows, sizes), matrices, torch.split(product, sizes), strict=True)
    for part, matrix, result in parts:
        torch.mm(part, matrix, out=result)
    return product


def _transposed_times(
    left: Tensor, right: Tensor, experts: int, counts: Tensor | None, grouped: bool
) -> Tensor:
    """For each expert, its rows of ``left``, transposed, times its rows of ``right``: [experts,
    left columns, right columns]."""
    if counts is None:
        stacked = left.view(experts, -1, left.shape[1]).transpose(1, 2)
        return torch.bmm(stacked, right.view(experts, -1, right.shape[1]))
    if grouped:
        return _grouped_mm(left.t(), right, offs=_ends(counts))
    products = left.new_empty(experts, left.shape[1], right.shape[1])
    sizes = counts.tolist()
    parts = zip(torch.split(left, sizes), torch.split(right, sizes), products, strict=True)
    for one, other, result in parts:
        torch.mm(one.t(), other, out=result)
    return products


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32)


@torch.library.custom_op("triptych::expert_product", mutates_args=())
def _product(rows: Tensor, matrices: Tensor, counts: Tensor | None, grouped: bool) -> Tensor:
    return _times(rows, matrices.transpose(1, 2), counts, grouped)


@torch.library.custom_op("triptych::expert_product_backward", mutates_args=())
def _product_backward(
    gradient: Tensor, rows: Tensor | None, matrices: Tensor, counts: Tensor | None, grouped: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of the rows and of the matrices; the latter is empty if the rows
    were not kept."""
    gradient = gradient.contiguous()
    of_rows = _times(gradient, matrices, counts, grouped)
    if rows is None:
        return of_rows, matrices.new_empty(0)
    return of_rows, _transposed_times(gradient, rows, len(matrices), counts, grouped)


@_product.register_fake
def _(rows: Tensor, matrices: Tensor, counts: Tensor | None, grouped: bool) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[1])


@_product_backward.register_fake
def _(
    gradient: Tensor, rows: Tensor | None, matrices: Tensor, counts: Tensor | None, grouped: bool
) -> tuple[Tensor, Tensor]:
    of_matrices = matrices.new_empty(0) if rows is None else torch.empty_like(matrices)
    return gradient.new_empty(gradient.shape[0], matrices.shape[2]), of_matrices


def _remember(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    rows, matrices, counts, ctx.grouped = inputs
    # If the matrices are frozen, the rows are not needed for the backward pass.
    ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, matrices, counts)


def _gradients(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    rows, matrices, counts = context.saved_tensors
    of_rows, of_matrices = _product_backward(gradient, rows, matrices, counts, context.grouped)
    return of_rows, None if rows is None else of_matrices, None, None


_product.register_autograd(_gradients, setup_context=_remember)

#: the operator as torch dispatches it, without that of the backward pass
OPERATORS = [torch.ops.triptych.expert_product.default]
