"""The decoders: GPT-3, Llama 3 and Mixtral, as lists of parts that are built where they run.

One list serves both a model that one rank holds and one that is cut into pipeline stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workflow_lib.records import Model, Training
from workflow_lib.training.collectives import Group, cross_entropy
from workflow_lib.training.experts import SparseFeedForward
from workflow_lib.training.layers import (
    Attention,
    GatedFeedForward,
    LayerNorm,
    OutputHead,
    PlainFeedForward,
    PositionEmbedding,
    RMSNorm,
    TokenEmbedding,
    output_deviation,
)
from workflow_lib.training.weights import Weights


class TransformerLayer(nn.Module):
    """Attention and a feed-forward part, each after a norm and beside a residual path.

    With full recomputation, only the layer's input is kept for the backward pass, which runs the whole
    layer again.
    """

    def __init__(self, weights: Weights, model: Model, index: int, training: Training) -> None:
        super().__init__()
        name, size = f"layer{index}", model.hidden_size
        gpt = model.family == "gpt"
        norm = LayerNorm if gpt else RMSNorm
        deviation = output_deviation(model.layers)
        self.recompute = training.recomputation == "full"
        self.attention_norm = norm(weights, size)
        self.attention = Attention(
            weights,
            f"{name}.attention",
            size,
            model.attention_heads,
            model.kv_heads,
            rotary=not gpt,
            bias=gpt,
            output_deviation=deviation,
        )
        self.feed_forward_norm = norm(weights, size)
        ffn_name, ffn_size = f"{name}.feed_forward", model.ffn_hidden_size
        self.feed_forward: nn.Module
        if gpt:
            self.feed_forward = PlainFeedForward(weights, ffn_name, size, ffn_size, deviation)
        elif model.experts == 0:
            self.feed_forward = GatedFeedForward(weights, ffn_name, size, ffn_size, deviation)
        else:
            self.feed_forward = SparseFeedForward(
                weights,
                ffn_name,
                size,
                ffn_size,
                model.experts,
                model.experts_per_token,
                deviation,
            )

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            # No layer draws random numbers, so there is no generator state to put back.
            again: Tensor = checkpoint(
                self._forward, x, use_reentrant=False, preserve_rng_state=False
            )
            return again
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


@dataclass(frozen=True)
class Part:
    """One step of the forward pass: the module's class and what to build it from.

    Parts with the same ``tied`` name share one module.
    """

    kind: type[nn.Module]
    arguments: tuple[Any, ...]
    tied: str | None = None

    def build(self) -> nn.Module:
        """Build the module on the device and in the precision of its Weights."""
        return self.kind(*self.arguments)


def parts(model: Model, weights: Weights, training: Training) -> list[Part]:
    """List a model's parts, from token ids to logits, over its padded vocabulary."""
    size, vocabulary = model.hidden_size, model.padded_vocabulary_size
    gpt = model.family == "gpt"
    embedding = Part(TokenEmbedding, (weights, vocabulary, size), "embedding" if gpt else None)
    positions = [Part(PositionEmbedding, (weights, model.sequence_length, size))] if gpt else []
    layers = [
        Part(TransformerLayer, (weights, model, index, training)) for index in range(model.layers)
    ]
    final_norm = Part(LayerNorm if gpt else RMSNorm, (weights, size))
    head = embedding if gpt else Part(OutputHead, (weights, vocabulary, size))
    return [embedding, *positions, *layers, final_norm, head]


class Decoder(nn.Module):
    """A whole model on one rank; its forward pass ends in the loss."""

    def __init__(self, sequence: list[Part], group: Group) -> None:
        super().__init__()
        self.loss = Loss(group)
        self.parts = nn.ModuleList()
        built: dict[str, nn.Module] = {}
        for part in sequence:
            module = built.get(part.tied) if part.tied else None
            module = part.build() if module is None else module
            if part.tied:
                built[part.tied] = module
            self.parts.append(module)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats; ``tokens`` and ``targets`` are [batch, sequence] ids."""
        x = tokens
        for part in self.parts:
            x = part(x)
        result: Tensor = self.loss(x, targets)
        return result


class Loss(nn.Module):
    """Mean cross-entropy of logits [batch, sequence, vocabulary / tp], in nats."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), self.group)


def held_parameters(module: nn.Module) -> int:
    """Parameters that a rank holds, before ZeRO cuts them; a shared one counts once."""
    return sum(int(getattr(p, "ds_numel", p.numel())) for p in module.parameters())
