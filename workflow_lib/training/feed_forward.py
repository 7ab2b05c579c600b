"""The dense feed-forward parts: GPT's and the gated one of Llama."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workflow_lib.training.layers import ColumnParallelLinear, RowParallelLinear
from workflow_lib.training.tensor_parallel import TensorParallel
from workflow_lib.training.weights import Weights


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
    ) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(
            weights, parallel, [f"{name}.up"], hidden_size, [ffn_size], bias=True
        )
        self.down = RowParallelLinear(
            weights, parallel, f"{name}.down", ffn_size, hidden_size, True, output_deviation
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return result


class GatedFeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): three matrices without biases."""

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        name: str,
        hidden_size: int,
        ffn_size: int,
        output_deviation: float,
    ) -> None:
        super().__init__()
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
        result: Tensor = self.down(gated(self.gate_up(x)))
        return result


def gated(gate_up: Tensor) -> Tensor:
    """SiLU of the first half of the last dimension, times the second half.

    Only ``gate_up`` is kept for the backward pass. A compiler finds that out by itself, and must:
    torch 2.11 compiles the function below into one whose gradients are zero.
    """
    if torch.compiler.is_compiling():
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
    result: Tensor = _Gated.apply(gate_up)  # type: ignore[no-untyped-call]
    return result


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, gate_up: Tensor) -> Tensor:
        context.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (gate_up,) = context.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        of_gate, of_up = result.chunk(2, dim=-1)
        of_gate.copy_(torch.ops.aten.silu_backward(gradients[0] * up, gate))
        of_up.copy_(F.silu(gate).mul_(gradients[0]))
        return result
