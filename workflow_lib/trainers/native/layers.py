"""The parts of a decoder, cut over a tensor-parallel group.

Between the parts, activations are [batch, sequence, hidden]. They are whole on every rank of the
group or, with sequence parallelism, cut along the sequence (see ``tensor_parallel``). Matrices that
widen are cut by rows, and those that narrow again by columns (arXiv 1909.08053). Embedding, head
and loss are cut over the vocabulary.
"""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from workflow_lib.records.model import Model
from workflow_lib.trainers.native.collectives import copy_to_group
from workflow_lib.trainers.native.context_parallel import ContextParallel, cut
from workflow_lib.trainers.native.device import on_gpu
from workflow_lib.trainers.native.key_value_cache import KeyValueCache, Place
from workflow_lib.trainers.native.rotary import rotary_table, rotate
from workflow_lib.trainers.native.tensor_parallel import TensorParallel
from workflow_lib.trainers.native.weights import STANDARD_DEVIATION, Weights


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (arXiv 1910.07467) with a weight."""

    def __init__(
        self, weights: Weights, parallel: TensorParallel, size: int, epsilon: float
    ) -> None:
        """``epsilon`` is added to the variance."""
        super().__init__()
        self.parallel, self.epsilon = parallel, epsilon
        self.weight = weights.constant(size, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.parallel.whole(self.weight), self.epsilon)


class LayerNorm(RMSNorm):
    """Layer normalisation with weight and bias."""

    def __init__(
        self, weights: Weights, parallel: TensorParallel, size: int, epsilon: float
    ) -> None:
        super().__init__(weights, parallel, size, epsilon)
        self.bias = weights.constant(size, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.parallel.whole(self.weight), self.parallel.whole(self.bias)
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.epsilon)


class QueryKeyNorm(nn.Module):
    """RMS norms over each head's queries and over each head's keys, as in Qwen3 (arXiv 2505.09388).

    Heads of one kind share a weight, which every rank of the group holds. Each rank has only some
    of the heads, so the weight's gradient is summed.
    """

    def __init__(self, weights: Weights, parallel: TensorParallel, model: Model) -> None:
        super().__init__()
        self.parallel, self.epsilon = parallel, model.norm_epsilon
        self.heads = model.attention_heads // parallel.size, model.kv_heads // parallel.size
        self.query = weights.constant(model.head_size, 1.0)
        self.key = weights.constant(model.head_size, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is [batch, sequence, heads of queries and then of keys, head size]."""
        group, rows = self.parallel.group, zip((self.query, self.key), self.heads, strict=True)
        weight = torch.cat([copy_to_group(row, group).expand(heads, -1) for row, heads in rows])
        return F.rms_norm(x, x.shape[-1:], None, self.epsilon) * weight


class ColumnParallelLinear(nn.Module):
    """Several linear maps of one input in one product; each rank computes a slice of each output.

    The result is [batch, sequence, sum(outputs) / tp], with the slices in the order of ``names``.
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
    """The attention kernels to try on a device, best first; empty if torch chooses.

    On Hopper cuDNN's kernel is about twice as fast as flash attention. Whether torch tries it first
    depends on torch's version, but a cell should run the same kernel under all versions.
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

    ``context`` says which part of each sequence this rank has.
    """

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        name: str,
        model: Model,
        context: ContextParallel,
    ) -> None:
        super().__init__()
        self.heads = model.attention_heads // parallel.size
        self.kv_heads = model.kv_heads // parallel.size
        self.head_size = model.head_size
        #: columns of a head that rotary positions turn
        self.turned = model.rotary_size
        device = weights.mesh.device
        self.kernels = attention_kernels(device)
        #: cache of the sequences that are generated; None in training
        self.cache: KeyValueCache | None = None
        #: where the next tokens belong in the sequences
        self.place = Place()
        # Not a buffer, because engines cast buffers to bf16.
        self.rotary = None
        self.context = context
        if model.family != "gpt":
            self.rotary = rotary_table(
                context.chunks, self.turned, model.rotary_base, device, model.rotary_scaling
            )
        self.query_key_value = ColumnParallelLinear(
            weights,
            parallel,
            [f"{name}.query", f"{name}.key", f"{name}.value"],
            model.hidden_size,
            [model.query_size, model.key_value_size, model.key_value_size],
            bias=model.is_plain or model.qkv_bias,
        )
        self.norm = QueryKeyNorm(weights, parallel, model) if model.qk_norm else None
        self.output = RowParallelLinear(
            weights,
            parallel,
            f"{name}.output",
            model.query_size,
            model.hidden_size,
            model.is_plain,
            output_deviation(model.layers),
        )

    def forward(self, x: Tensor) -> Tensor:
        joined = self.query_key_value(x).unflatten(-1, (-1, self.head_size))
        heads, kv_heads = self.heads, self.kv_heads
        if self.rotary is None:
            query, key, value = torch.split(joined, [heads, kv_heads, kv_heads], dim=2)
        else:
            turning, value = torch.split(joined, [heads + kv_heads, kv_heads], dim=2)
            turning = turning if self.norm is None else self.norm(turning)
            cosines, sines = (self.place.rows(table, joined.shape[1]) for table in self.rotary)
            if self.turned == self.head_size:
                turned = rotate(turning, cosines, sines)
            else:
                part, rest = turning.split([self.turned, self.head_size - self.turned], dim=-1)
                turned = torch.cat([rotate(part, cosines, sines), rest], dim=-1)
            query, key = torch.split(turned, [heads, kv_heads], dim=2)
            if self.cache is None:
                # A view would keep the unturned queries and keys for the backward pass as well.
                value = value.contiguous()
        if self.cache is not None:
            key, value = self.cache.extend(key, value, self.place)
        result: Tensor = self.output(self._attend(query, key, value).flatten(2))
        return result

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention; all tensors are [batch, sequence, heads, size].

        A single query is that of the last token and sees all keys that are there. Where their
        number grows, cuDNN is not preferred for it, because it would plan anew for each length.
        """
        several, bias = query.shape[1] > 1, self.place.bias
        ordered = self.kernels and (several or bias is not None)
        prefer = sdpa_kernel(self.kernels, True) if ordered else contextlib.nullcontext()
        with prefer:
            if self.context.size == 1:
                return self._mix(query, key, value, bias, several)
            return self.context.attend(query, *self.context.gather(key, value))

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=mask,
            is_causal=causal,
            enable_gqa=self.heads != self.kv_heads,
        )
        return mixed.transpose(1, 2)


class TokenEmbedding(nn.Module):
    """A matrix with one row for each token of the vocabulary, which is spread over the group.

    Given token ids [batch, sequence], it looks their rows up. Given hidden states, it acts as the
    output head that is tied to it, and returns this rank's slice of the logits.
    """

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        vocabulary_size: int,
        hidden_size: int,
        scale: float,
    ) -> None:
        """``scale`` multiplies the rows that are looked up."""
        super().__init__()
        self.parallel, self.group, self.scale = parallel, parallel.group, scale
        self.weight = weights.normal("embedding", (vocabulary_size, hidden_size), split=0)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return self.parallel.column_product(x, self.weight, None)
        rows = self._look_up(x)
        return rows if self.scale == 1.0 else rows * self.scale

    def _look_up(self, x: Tensor) -> Tensor:
        if self.parallel.size == 1:
            return F.embedding(x, self.weight)
        vocabulary = self.weight.shape[0]
        local = x - self.parallel.rank * vocabulary
        elsewhere = (local < 0) | (local >= vocabulary)
        rows = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.parallel.leave(rows.masked_fill(elsewhere.unsqueeze(-1), 0.0))


class PositionEmbedding(nn.Module):
    """Learned positions, added to the token embeddings."""

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        context: ContextParallel,
        length: int,
        hidden_size: int,
    ) -> None:
        super().__init__()
        self.parallel, self.context = parallel, context
        self.weight = weights.normal("positions", (length, hidden_size))
        #: where the next tokens belong in the sequences
        self.place = Place()

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        mine = cut(self.parallel.whole(self.weight), self.context.chunks, 0)
        if self.parallel.sequence:
            first = self.parallel.rank * count
            return x + mine[first : first + count]
        return x + self.place.rows(mine, count)


class OutputHead(ColumnParallelLinear):
    """An untied head: this rank's slice of the logits, [batch, sequence, vocabulary / tp]."""

    def __init__(
        self, weights: Weights, parallel: TensorParallel, vocabulary_size: int, hidden_size: int
    ) -> None:
        super().__init__(weights, parallel, ["head"], hidden_size, [vocabulary_size], bias=False)


def output_deviation(layers: int) -> float:
    """Deviation of the matrices that write to the residual stream, as in GPT-2; it gets 2·L
    additions."""
    return float(STANDARD_DEVIATION / (2.0 * layers) ** 0.5)
