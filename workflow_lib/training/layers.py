"""The parts of a decoder, cut over a tensor-parallel group.

Activations are [batch, sequence, hidden], whole on every rank of the group. Matrices that widen are
cut by rows, those that narrow again by columns, so that attention and the feed-forward part each
need one all-reduce in either direction (arXiv 1909.08053). Embedding, head and loss are cut over
the vocabulary.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workflow_lib.training.collectives import (
    copy_to_group,
    group_rank,
    group_size,
    sum_over_group,
)
from workflow_lib.training.weights import STANDARD_DEVIATION, Weights

#: base of the rotary frequencies, as Llama 3 has it (arXiv 2407.21783)
ROTARY_BASE = 500_000.0


class LayerNorm(nn.Module):
    """Layer normalisation with weight and bias."""

    def __init__(self, weights: Weights, size: int) -> None:
        super().__init__()
        self.weight = weights.constant(size, 1.0)
        self.bias = weights.constant(size, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (arXiv 1910.07467) with a weight."""

    def __init__(self, weights: Weights, size: int) -> None:
        super().__init__()
        self.weight = weights.constant(size, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


class ColumnParallelLinear(nn.Module):
    """Several linear maps of one input in one product; each rank yields a slice of each output.

    The result is [..., sum(outputs) / tp], the slices in the order of ``names``.
    """

    def __init__(
        self, weights: Weights, names: list[str], size: int, outputs: list[int], bias: bool
    ) -> None:
        super().__init__()
        self.group = weights.mesh.tp_group
        self.weight = weights.stacked(names, [(output, size) for output in outputs], split=0)
        self.bias = weights.constant(sum(outputs), 0.0, split=0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(copy_to_group(x, self.group), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear map whose input is sliced over the group, and whose output is whole."""

    def __init__(
        self, weights: Weights, name: str, size: int, output: int, bias: bool, deviation: float
    ) -> None:
        super().__init__()
        self.group = weights.mesh.tp_group
        self.weight = weights.normal(name, (output, size), deviation, split=1)
        self.bias = weights.constant(output, 0.0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = sum_over_group(F.linear(x, self.weight), self.group)
        # The bias is added once, after the sum over the ranks.
        return x if self.bias is None else x + self.bias


@functools.lru_cache(maxsize=4)
def rotary_table(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions (arXiv 2104.09864), each [length, size / 2] in fp32.

    One table serves every layer.
    """
    exponents = torch.arange(0, size, 2, device=device, dtype=torch.float32) / size
    positions = torch.arange(length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, ROTARY_BASE**-exponents)
    return angles.cos(), angles.sin()


def rotate(x: Tensor) -> Tensor:
    """Turn each pair (i, i + size/2) of x, [batch, heads, sequence, size], by its position."""
    cosines, sines = rotary_table(x.shape[-2], x.shape[-1], x.device)
    first, second = x.float().chunk(2, dim=-1)
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat(turned, dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal attention with grouped key and value heads, the heads spread over the group."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        rotary: bool,
        bias: bool,
        output_deviation: float,
    ) -> None:
        super().__init__()
        tp = group_size(weights.mesh.tp_group)
        self.heads, self.kv_heads = heads // tp, kv_heads // tp
        self.head_size = hidden_size // heads
        self.rotary = rotary
        self.query_key_value = ColumnParallelLinear(
            weights,
            [f"{name}.query", f"{name}.key", f"{name}.value"],
            hidden_size,
            [hidden_size, kv_heads * self.head_size, kv_heads * self.head_size],
            bias,
        )
        self.output = RowParallelLinear(
            weights, f"{name}.output", hidden_size, hidden_size, bias, output_deviation
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        joined = self.query_key_value(x).view(batch, length, -1, self.head_size).transpose(1, 2)
        query, key, value = joined.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.rotary:
            query, key = rotate(query), rotate(key)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.heads != self.kv_heads
        )
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class PlainFeedForward(nn.Module):
    """Two matrices with a GELU between them, and biases."""

    def __init__(
        self, weights: Weights, name: str, hidden_size: int, ffn_size: int, output_deviation: float
    ) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(weights, [f"{name}.up"], hidden_size, [ffn_size], bias=True)
        self.down = RowParallelLinear(
            weights, f"{name}.down", ffn_size, hidden_size, True, output_deviation
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return result


class GatedFeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): three matrices without biases."""

    def __init__(
        self, weights: Weights, name: str, hidden_size: int, ffn_size: int, output_deviation: float
    ) -> None:
        super().__init__()
        self.gate_up = ColumnParallelLinear(
            weights, [f"{name}.gate", f"{name}.up"], hidden_size, [ffn_size, ffn_size], bias=False
        )
        self.down = RowParallelLinear(
            weights, f"{name}.down", ffn_size, hidden_size, False, output_deviation
        )

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        result: Tensor = self.down(F.silu(gate) * up)
        return result


class TokenEmbedding(nn.Module):
    """A matrix with one row a token, the vocabulary spread over the group.

    Given token ids [batch, sequence] it looks their rows up; given hidden states it acts as the
    output head that is tied to it, and returns this rank's slice of the logits.
    """

    def __init__(self, weights: Weights, vocabulary_size: int, hidden_size: int) -> None:
        super().__init__()
        self.group = weights.mesh.tp_group
        self.weight = weights.normal("embedding", (vocabulary_size, hidden_size), split=0)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return F.linear(copy_to_group(x, self.group), self.weight)
        if group_size(self.group) == 1:
            return F.embedding(x, self.weight)
        rows = self.weight.shape[0]
        local = x - group_rank(self.group) * rows
        elsewhere = (local < 0) | (local >= rows)
        found = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return sum_over_group(found.masked_fill(elsewhere.unsqueeze(-1), 0.0), self.group)


class PositionEmbedding(nn.Module):
    """Learned positions, added to the token embeddings."""

    def __init__(self, weights: Weights, length: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = weights.normal("positions", (length, hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.shape[1]]


class OutputHead(ColumnParallelLinear):
    """An untied head: this rank's slice of the logits, [batch, sequence, vocabulary / tp]."""

    def __init__(self, weights: Weights, vocabulary_size: int, hidden_size: int) -> None:
        super().__init__(weights, ["head"], hidden_size, [vocabulary_size], bias=False)


def output_deviation(layers: int) -> float:
    """Deviation of the matrices that write to the residual stream, as in GPT-2: it has 2·L adds."""
    return float(STANDARD_DEVIATION / (2.0 * layers) ** 0.5)
