"""The decoders (GPT-3, NeoX, Llama 3 and Mixtral) as lists of parts that are built where they run.

The same list serves a model on one rank and a model that is cut into pipeline stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workflow_lib.records.model import Model
from workflow_lib.records.training import Training
from workflow_lib.trainers.native import float8, recomputation
from workflow_lib.trainers.native.collectives import Group
from workflow_lib.trainers.native.context_parallel import ContextParallel
from workflow_lib.trainers.native.cross_entropy import cross_entropy
from workflow_lib.trainers.native.experts import SparseFeedForward
from workflow_lib.trainers.native.feed_forward import GatedFeedForward, PlainFeedForward
from workflow_lib.trainers.native.layers import (
    Attention,
    ColumnParallelLinear,
    LayerNorm,
    OutputHead,
    PositionEmbedding,
    RMSNorm,
    RowParallelLinear,
    TokenEmbedding,
    output_deviation,
)
from workflow_lib.trainers.native.tensor_parallel import TensorParallel
from workflow_lib.trainers.native.weights import Weights

#: numerator of the scaling, for any rank of adapters: the default of NVIDIA NeMo's LoRA
ALPHA = 32.0


class AdaptedLinear(nn.Module):
    """A frozen map with a low-rank adapter (LoRA, arXiv 2106.09685): W·x + (alpha / rank)·B·(A·x).

    A is ``narrow``. B, ``widen``, starts at zero, so that the first step is the base model's.
    If the base's outputs are cut over the group, so are B's rows, and A is whole. If its inputs are
    cut, so are A's columns, and B is whole. Ranks exchange only A·x, which is ``rank`` wide. With
    sequence parallelism, the whole matrix of a pair meets only a slice of the sequence on each
    rank, so its gradient is summed over the ranks.
    """

    def __init__(
        self,
        base: ColumnParallelLinear | RowParallelLinear,
        weights: Weights,
        name: str,
        shape: tuple[int, int],
        rank: int,
    ) -> None:
        """``shape`` is that of the whole map: [outputs, inputs]."""
        super().__init__()
        trained, (outputs, inputs) = weights.for_adapters(), shape
        self.base, self.parallel = base, base.parallel
        self.scale = ALPHA / rank
        self.rows_cut = isinstance(base, ColumnParallelLinear)
        self.narrow = trained.normal(
            f"{name}.narrow", (rank, inputs), inputs**-0.5, split=None if self.rows_cut else 1
        )
        self.widen = trained.zeros((outputs, rank), split=0 if self.rows_cut else None)

    def forward(self, x: Tensor) -> Tensor:
        parallel = self.parallel
        if self.rows_cut:
            thin = parallel.enter(F.linear(x, parallel.whole(self.narrow)))
            wide = F.linear(thin, self.widen)
        else:
            thin = parallel.leave(F.linear(x, self.narrow))
            wide = F.linear(thin, parallel.whole(self.widen))
        return torch.add(self.base(x), wide, alpha=self.scale)


def adapt(layer: nn.Module, weights: Weights, name: str, model: Model, training: Training) -> None:
    """Add adapters to attention's matrices and those of a dense feed-forward part.

    Matrices that share a product (query, key and value; gate and up) share an A. Experts, router,
    embedding, norms and head are frozen and have none.
    """
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    shapes = {
        "attention.query_key_value": (model.query_size + 2 * model.key_value_size, hidden),
        "attention.output": (hidden, model.query_size),
    }
    if model.is_plain:
        shapes |= {"feed_forward.up": (ffn, hidden), "feed_forward.down": (hidden, ffn)}
    elif model.experts == 0:
        shapes |= {"feed_forward.gate_up": (2 * ffn, hidden), "feed_forward.down": (hidden, ffn)}
    for path, shape in shapes.items():
        base = layer.get_submodule(path)
        assert isinstance(base, (ColumnParallelLinear, RowParallelLinear))
        adapted = AdaptedLinear(base, weights, f"{name}.{path}", shape, training.lora_rank)
        layer.set_submodule(path, adapted)


class TransformerLayer(nn.Module):
    """Attention and a feed-forward part, each after a norm and beside a residual path. In neox both
    take the layer's input (arXiv 2204.06745, section 2.1.2).

    ``recomputation`` says what is kept for the backward pass.
    """

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        context: ContextParallel,
        model: Model,
        index: int,
        training: Training,
    ) -> None:
        super().__init__()
        name, size = f"layer{index}", model.hidden_size
        norm = LayerNorm if model.is_plain else RMSNorm
        self.side_by_side = model.family == "neox"
        deviation, epsilon = output_deviation(model.layers), model.norm_epsilon
        self.recomputation = training.recomputation
        self.spread_experts = weights.mesh.degrees.ep > 1
        self.attention_norm = norm(weights, parallel, size, epsilon)
        self.attention = Attention(weights, parallel, f"{name}.attention", model, context)
        self.feed_forward_norm = norm(weights, parallel, size, epsilon)
        ffn_name, ffn_size = f"{name}.feed_forward", model.ffn_hidden_size
        self.feed_forward: nn.Module
        if model.is_plain:
            activation = model.activation
            if activation == "usual":
                activation = "gelu" if self.side_by_side else "gelu_tanh"
            self.feed_forward = PlainFeedForward(
                weights, parallel, ffn_name, size, ffn_size, deviation, activation
            )
        elif model.experts == 0:
            self.feed_forward = GatedFeedForward(
                weights, parallel, ffn_name, size, ffn_size, deviation, model.activation
            )
        else:
            self.feed_forward = SparseFeedForward(
                weights, parallel, ffn_name, model, training, deviation
            )
        if training.workload == "lora":
            adapt(self, weights, name, model, training)
        if training.precision == "fp8":
            float8.convert(self, weights.mesh.device, training.fp8_recipe)

    def forward(self, x: Tensor) -> Tensor:
        return recomputation.run(self._forward, x, self.recomputation, self.spread_experts)

    def _forward(self, x: Tensor) -> Tensor:
        if self.side_by_side:
            both = self.attention(self.attention_norm(x))
            both = both + self.feed_forward(self.feed_forward_norm(x))
            return x + both  # type: ignore[no-any-return]
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


@dataclass(frozen=True)
class Part:
    """One part of the forward pass: the module's class and the arguments to build it."""

    kind: type[nn.Module]
    arguments: tuple[Any, ...]
    tied: str | None = None

    def build(self) -> nn.Module:
        """Build the module on the device and in the precision of its Weights."""
        return self.kind(*self.arguments)


def parts(model: Model, weights: Weights, training: Training) -> list[Part]:
    """List a model's parts, from token ids to logits over its padded vocabulary."""
    size, vocabulary = model.hidden_size, model.padded_vocabulary_size
    gpt = model.family == "gpt"
    parallel = TensorParallel(weights.mesh.tp_group, training.sequence_parallel, training.overlap)
    context = ContextParallel(weights.mesh.cp_group, model.sequence_length, weights.mesh.device)
    tied = model.has_tied_embeddings
    embedding = Part(
        TokenEmbedding,
        (weights, parallel, vocabulary, size, model.embedding_scale),
        "embedding" if tied else None,
    )
    positions = (
        [Part(PositionEmbedding, (weights, parallel, context, model.sequence_length, size))]
        if gpt
        else []
    )
    layers = [
        Part(TransformerLayer, (weights, parallel, context, model, index, training))
        for index in range(model.layers)
    ]
    norm = LayerNorm if model.is_plain else RMSNorm
    final_norm = Part(norm, (weights, parallel, size, model.norm_epsilon))
    head = embedding if tied else Part(OutputHead, (weights, parallel, vocabulary, size))
    return [embedding, *positions, *layers, final_norm, head]


def build(sequence: Iterable[Part]) -> nn.ModuleList:
    """The modules of some parts. Parts that are tied are one module."""
    modules = nn.ModuleList()
    built: dict[str, nn.Module] = {}
    for part in sequence:
        module = built.get(part.tied) if part.tied else None
        module = part.build() if module is None else module
        if part.tied:
            built[part.tied] = module
        modules.append(module)
    return modules


class Decoder(nn.Module):
    """A whole model on one rank; its forward pass ends in the loss."""

    def __init__(self, sequence: list[Part], group: Group) -> None:
        super().__init__()
        self.loss = Loss(group)
        self.parts = build(sequence)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats; ``tokens`` and ``targets`` are [batch, sequence] ids."""
        x = tokens
        for part in self.parts:
            x = part(x)
        result: Tensor = self.loss(x, targets)
        return result


class Loss(nn.Module):
    """Mean cross-entropy of logits [batch, sequence, vocabulary / tp], in nats."""

    def __init__(self, group: Group, compiled: bool = False) -> None:
        super().__init__()
        self.group, self.compiled = group, compiled

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), self.group, self.compiled)


def held_parameters(module: nn.Module) -> int:
    """Parameters that a rank holds, before ZeRO cuts them; a shared one counts once."""
    return sum(int(getattr(p, "ds_numel", p.numel())) for p in module.parameters())


def stage_bounds(sequence: Sequence[Part], layers_of_stages: Sequence[int]) -> list[int]:
    """Where stages begin in a list of parts, and where the last one ends: stages + 1 numbers.

    ``layers_of_stages`` holds the number of transformer layers of each stage. Parts before the
    layers are on the first stage, parts after them on the last.

    Raises ValueError if the stages do not hold exactly the model's layers.
    """
    layers = [place for place, part in enumerate(sequence) if part.kind is TransformerLayer]
    if sum(layers_of_stages) != len(layers):
        raise ValueError(
            f"the stages hold {sum(layers_of_stages)} layers, but the model has {len(layers)}: "
            "make stage_layers agree with the model"
        )
    begins = [0]
    for stage in range(1, len(layers_of_stages)):
        begins.append(layers[sum(layers_of_stages[:stage])])
    return [*begins, len(sequence)]


def split_into_stages(
    sequence: Sequence[Part], layers_of_stages: Sequence[int]
) -> list[list[Part]]:
    """A model's parts, stage by stage; see ``stage_bounds``."""
    ends = stage_bounds(sequence, layers_of_stages)
    return [list(sequence[begin:end]) for begin, end in pairwise(ends)]
