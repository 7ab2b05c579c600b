"""The dense feed-forward parts: GPT's and the gated one of Llama."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workflow_lib.records.model import Activation
from workflow_lib.trainers.native.layers import ColumnParallelLinear, RowParallelLinear
from workflow_lib.trainers.native.tensor_parallel import TensorParallel
from workflow_lib.trainers.native.weights import Weights

#: torch's names of the GELUs
_APPROXIMATE = {"gelu": "none", "gelu_tanh": "tanh"}


class PlainFeedForward(nn.Module):
    """Two matrices with a GELU between them, and biases."""

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        name: str,
        hidden_size: int,
        ffn_size: int,
        output_deviation: float,
        activation: Activation,
    ) -> None:
        """``activation`` is one of the GELUs."""
        super().__init__()
        self.approximate = _APPROXIMATE[activation]
        self.up = ColumnParallelLinear(
            weights, parallel, [f"{name}.up"], hidden_size, [ffn_size], bias=True
        )
        self.down = RowParallelLinear(
            weights, parallel, f"{name}.down", ffn_size, hidden_size, True, output_deviation
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.gelu(self.up(x), approximate=self.approximate))
        return result


class GatedFeedForward(nn.Module):
    """SwiGLU or GeGLU (arXiv 2002.05202): three matrices without biases."""

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        name: str,
        hidden_size: int,
        ffn_size: int,
        output_deviation: float,
        activation: Activation = "usual",
    ) -> None:
        super().__init__()
        self.activation = activation
        self.gate_up = ColumnParallelLinear(
            weights,
            parallel,
            [f"{name}.gate", f"{name}.up"],
            hidden_size,
            [ffn_size, ffn_size],
            bias=False,
        )
        self.down = RowParallelLinear(
            weights, parallel, f"{name}.down", ffn_size, hidden_size, False, output_deviation
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(gated(self.gate_up(x), self.activation))
        return result


def gated(gate_up: Tensor, activation: Activation = "usual", fused: bool = False) -> Tensor:
    """SiLU, or a GELU, of the first half of the last dimension, times the second half.

    Only ``gate_up`` is kept for the backward pass. Outside of what is compiled, ``fused`` has
    ``pointwise`` do both passes.
    """
    if torch.compiler.is_compiling():
        compiled: Tensor = _CompiledGated.apply(gate_up, activation)  # type: ignore[no-untyped-call]
        return compiled
    result: Tensor = _Gated.apply(gate_up, activation, fused)  # type: ignore[no-untyped-call]
    return result


def gate(gate_up: Tensor, activation: Activation = "usual") -> Tensor:
    """The result of ``gated``, where nothing is to be kept."""
    first, second = gate_up.chunk(2, dim=-1)
    return _activated(first, activation).mul_(second)


def gate_gradients(gradient: Tensor, gate_up: Tensor, activation: Activation = "usual") -> Tensor:
    """The gradient of ``gate_up`` from that of ``gated``'s result."""
    first, second = gate_up.chunk(2, dim=-1)
    result = torch.empty_like(gate_up)
    of_first, of_second = result.chunk(2, dim=-1)
    of_first.copy_(_activation_gradient(gradient * second, first, activation))
    of_second.copy_(_activated(first, activation).mul_(gradient))
    return result


@functools.cache
def pointwise(fused: bool) -> tuple[Any, Any]:
    """``gate`` and ``gate_gradients``, each as one kernel that torch.compile makes, for any number
    of rows, or as several."""
    return (_fused(gate), _fused(gate_gradients)) if fused else (gate, gate_gradients)


def _fused(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiled = torch.compile(kernel)

    def call(*arguments: Any) -> Tensor:
        # A layer is compiled for fixed sizes, which holds for what runs within it, too.
        for argument in arguments:
            if isinstance(argument, Tensor):
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        return compiled(*arguments)

    return call


def _activated(gate: Tensor, activation: Activation) -> Tensor:
    if activation in ("usual", "silu"):
        return F.silu(gate)
    return F.gelu(gate, approximate=_APPROXIMATE[activation])


def _activation_gradient(gradient: Tensor, gate: Tensor, activation: Activation) -> Tensor:
    if activation in ("usual", "silu"):
        result: Tensor = torch.ops.aten.silu_backward(gradient, gate)
    else:
        approximate = _APPROXIMATE[activation]
        result = torch.ops.aten.gelu_backward(gradient, gate, approximate=approximate)
    return result


@torch.library.custom_op("triptych::join", mutates_args=())
def join(halves: list[Tensor]) -> Tensor:
    """Tensors beside each other in the last dimension."""
    return torch.cat(halves, dim=-1)


@join.register_fake
def _joined(halves: list[Tensor]) -> Tensor:
    return torch.cat(halves, dim=-1)


@functools.cache
def compile_join() -> None:
    """Have torch.compile write both parts of :func:`join` from one kernel, each into its place.

    It makes one of ``torch.cat`` that computes each part where the other one lies, too, and so
    reads what both are made of twice: on an H200 half as fast.
    """
    from torch._inductor.ir import ConcatKernel, TensorBox
    from torch._inductor.lowering import register_lowering

    @register_lowering(torch.ops.triptych.join.default, type_promotion_kind=None)
    def lower(halves: list[TensorBox]) -> TensorBox:
        return TensorBox(ConcatKernel.create(halves, len(halves[0].get_size()) - 1))


class _CompiledGated(torch.autograd.Function):
    # torch 2.11 compiles the function below this one into one whose gradients are zero.
    @staticmethod
    def forward(context: Any, gate_up: Tensor, activation: Activation) -> Tensor:
        context.save_for_backward(gate_up)
        context.activation = activation
        first, second = gate_up.chunk(2, dim=-1)
        return _activated(first, activation) * second

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gate_up,), (gradient,) = context.saved_tensors, gradients
        first, second = gate_up.chunk(2, dim=-1)
        of_first = _activation_gradient(gradient * second, first, context.activation)
        of_second = _activated(first, context.activation) * gradient
        return join([of_first, of_second]), None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, gate_up: Tensor, activation: Activation, fused: bool) -> Tensor:
        context.save_for_backward(gate_up)
        context.activation, context.fused = activation, fused
        result: Tensor = pointwise(fused)[0](gate_up, activation)
        return result

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gate_up,) = context.saved_tensors
        gradients_of = pointwise(context.fused)[1]
        return gradients_of(gradients[0], gate_up, context.activation), None, None
