"""The norms of a decoder: over a token's hidden states, and over a head's queries and keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workflow_lib.records import Model
from workflow_lib.trainers.native.collectives import copy_to_group
from workflow_lib.trainers.native.tensor_parallel import TensorParallel
from workflow_lib.trainers.native.weights import Weights


class LayerNorm(nn.Module):
    """Layer normalisation with weight and bias."""

    def __init__(
        self, weights: Weights, parallel: TensorParallel, size: int, epsilon: float
    ) -> None:
        """``epsilon`` is added to the variance."""
        super().__init__()
        self.parallel, self.epsilon = parallel, epsilon
        self.weight = weights.constant(size, 1.0)
        self.bias = weights.constant(size, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.parallel.whole(self.weight), self.parallel.whole(self.bias)
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.epsilon)


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
        weight = torch.cat([copy_to_group(each, group).expand(n, -1) for each, n in rows])
        return F.rms_norm(x, x.shape[-1:], None, self.epsilon) * weight
