"""The parts of a decoder, cut over a tensor-parallel group.

Activations between the parts are [batch, sequence, hidden], whole on every rank of the group or,
with sequence parallelism, sliced along the sequence (``tensor_parallel`` has both). Matrices that
widen are cut by rows, those that narrow again by columns (arXiv 1909.08053). Embedding, head and
loss are cut over the vocabulary.
"""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from workflow_lib.training.device import on_gpu
from workflow_lib.training.key_value_cache import KeyValueCache
from workflow_lib.training.rotary import rotary_table, rotate
from workflow_lib.training.tensor_parallel import TensorParallel
from workflow_lib.training.weights import STANDARD_DEVIATION, Weights

#: added to the variance in every norm
NORM_EPSILON = 1e-5


class LayerNorm(nn.Module):
    """Layer normalisation with weight and bias."""

    def __init__(self, weights: Weights, parallel: TensorParallel, size: int) -> None:
        super().__init__()
        self.parallel = parallel
        self.weight = weights.constant(size, 1.0)
        self.bias = weights.constant(size, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.parallel.whole(self.weight), self.parallel.whole(self.bias)
        return F.layer_norm(x, x.shape[-1:], weight, bias, NORM_EPSILON)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (arXiv 1910.07467) with a weight."""

    def __init__(self, weights: Weights, parallel: TensorParallel, size: int) -> None:
        super().__init__()
        self.parallel = parallel
        self.weight = weights.constant(size, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.parallel.whole(self.weight), NORM_EPSILON)


class ColumnParallelLinear(nn.Module):
    """Several linear maps of one input in one product; each rank yields a slice of each output.

    The result is [batch, sequence, sum(outputs) / tp], the slices in the order of ``names``.
    """

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        names: list[str],
        size: int,
        outputs: list[int],
        bias: bool,
    ) -> None:
        super().__init__()
        self.parallel, self.group = parallel, parallel.group
        self.weight = weights.stacked(names, [(output, size) for output in outputs], split=0)
        self.bias = weights.constant(sum(outputs), 0.0, split=0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.parallel.column_product(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear map whose input is sliced over the group, and whose output is summed over it."""

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        name: str,
        size: int,
        output: int,
        bias: bool,
        deviation: float,
    ) -> None:
        super().__init__()
        self.parallel, self.group = parallel, parallel.group
        self.weight = weights.normal(name, (output, size), deviation, split=1)
        self.bias = weights.constant(output, 0.0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.parallel.size == 1:
            return F.linear(x, self.weight, self.bias)
        x = self.parallel.row_product(x, self.weight)
        # The bias is added once, after the sum over the ranks.
        return x if self.bias is None else x + self.parallel.whole(self.bias)


def attention_kernels(device: torch.device) -> list[SDPBackend]:
    """The attention kernels to try on a device, best first; empty where torch's choice stands.

    On Hopper cuDNN's is about twice as fast as flash attention. Whether torch tries it first
    depends on torch's version, and a cell is to run the same kernel under all of them.
    """
    if not on_gpu(device) or torch.version.hip is not None:
        return []
    if torch.cuda.get_device_capability(device) < (9, 0):
        return []
    return [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]


class Attention(nn.Module):
    """Causal attention with grouped key and value heads, the heads spread over the group.

    ``rotary_length`` is the longest sequence where positions are rotary, with ``rotary_base``, and
    0 where they are not.
    """

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        name: str,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        rotary_length: int,
        rotary_base: float,
        bias: bool,
        output_deviation: float,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads // parallel.size, kv_heads // parallel.size
        self.head_size = hidden_size // heads
        device = weights.mesh.device
        self.kernels = attention_kernels(device)
        #: of the sequences that are being generated; None in training
        self.cache: KeyValueCache | None = None
        # No buffer: engines cast those to bf16.
        self.rotary = None
        if rotary_length:
            self.rotary = rotary_table(rotary_length, self.head_size, rotary_base, device)
        self.query_key_value = ColumnParallelLinear(
            weights,
            parallel,
            [f"{name}.query", f"{name}.key", f"{name}.value"],
            hidden_size,
            [hidden_size, kv_heads * self.head_size, kv_heads * self.head_size],
            bias,
        )
        self.output = RowParallelLinear(
            weights, parallel, f"{name}.output", hidden_size, hidden_size, bias, output_deviation
        )

    def forward(self, x: Tensor) -> Tensor:
        joined = self.query_key_value(x).unflatten(-1, (-1, self.head_size))
        first = 0 if self.cache is None else self.cache.length
        end = first + joined.shape[1]
        heads, kv_heads = self.heads, self.kv_heads
        if self.rotary is None:
            query, key, value = torch.split(joined, [heads, kv_heads, kv_heads], dim=2)
        else:
            turning, value = torch.split(joined, [heads + kv_heads, kv_heads], dim=2)
            cosines, sines = self.rotary
            turned = rotate(turning, cosines[first:end], sines[first:end])
            query, key = torch.split(turned, [heads, kv_heads], dim=2)
            # As a view it would keep the unturned queries and keys, too, for the backward pass.
            value = value.contiguous()
        if self.cache is not None:
            key, value = self.cache.extend(key, value)
        result: Tensor = self.output(self._attend(query, key, value).flatten(2))
        return result

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Mix the values; all are [batch, sequence, heads, size].

        A single query sees all keys: it is the last one's. cuDNN would plan anew for each length of
        what it sees.
        """
        several = query.shape[1] > 1
        ordered = self.kernels and several
        prefer = sdpa_kernel(self.kernels, True) if ordered else contextlib.nullcontext()
        with prefer:
            mixed = F.scaled_dot_product_attention(
                query.transpose(1, 2),
                key.transpose(1, 2),
                value.transpose(1, 2),
                is_causal=several,
                enable_gqa=self.heads != self.kv_heads,
            )
        return mixed.transpose(1, 2)


class TokenEmbedding(nn.Module):
    """A matrix with one row a token, the vocabulary spread over the group.

    Given token ids [batch, sequence] it looks their rows up; given hidden states it acts as the
    output head that is tied to it, and returns this rank's slice of the logits.
    """

    def __init__(
        self, weights: Weights, parallel: TensorParallel, vocabulary_size: int, hidden_size: int
    ) -> None:
        super().__init__()
        self.parallel, self.group = parallel, parallel.group
        self.weight = weights.normal("embedding", (vocabulary_size, hidden_size), split=0)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return self.parallel.column_product(x, self.weight, None)
        if self.parallel.size == 1:
            return F.embedding(x, self.weight)
        rows = self.weight.shape[0]
        local = x - self.parallel.rank * rows
        elsewhere = (local < 0) | (local >= rows)
        found = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.parallel.leave(found.masked_fill(elsewhere.unsqueeze(-1), 0.0))


class PositionEmbedding(nn.Module):
    """Learned positions, added to the token embeddings."""

    def __init__(
        self, weights: Weights, parallel: TensorParallel, length: int, hidden_size: int
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.weight = weights.normal("positions", (length, hidden_size))
        #: tokens that came before, where a sequence is being generated
        self.first = 0

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        first = self.parallel.rank * count if self.parallel.sequence else self.first
        return x + self.parallel.whole(self.weight)[first : first + count]


class OutputHead(ColumnParallelLinear):
    """An untied head: this rank's slice of the logits, [batch, sequence, vocabulary / tp]."""

    def __init__(
        self, weights: Weights, parallel: TensorParallel, vocabulary_size: int, hidden_size: int
    ) -> None:
        super().__init__(weights, parallel, ["head"], hidden_size, [vocabulary_size], bias=False)


def output_deviation(layers: int) -> float:
    """Deviation of the matrices that write to the residual stream, as in GPT-2: it has 2·L adds."""
    return float(STANDARD_DEVIATION / (2.0 * layers) ** 0.5)
