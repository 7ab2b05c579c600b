"""Steps of a cell by Hugging Face transformers: its Llama under FSDP2, its layers compiled."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from research.measuring import tokens
from workflow_lib.records import Cell, Model
from workflow_lib.trainers.native import mesh


def refusal(cell: Cell) -> str | None:
    """Why this peer cannot train a cell as it is, or None."""
    model, degrees, training = cell.model, cell.degrees, cell.training
    if model.family != "llama":
        return f"this peer has Llama's layers, not those of {model.family}"
    if degrees.dp != degrees.world_size:
        return "this peer has replicas only"
    if training.precision != "bf16":
        return f"this peer trains in bf16, not in {training.precision}"
    if training.recomputation != "none" or training.zero_stage == 3:
        return "this peer keeps all activations, and weights gathered within a step"
    return None


def settings(cell: Cell) -> dict[str, Any]:
    """What this peer does, in words."""
    return {"weights": "fp32, cast to bf16 by FSDP2", "compiled": "layers and loss"}


def parameters(cell: Cell) -> int:
    """How many parameters transformers' model of a cell has, by its own code."""
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        return sum(
            parameter.numel() for parameter in LlamaForCausalLM(_sizes(cell.model)).parameters()
        )


class Peer:
    """transformers' model of a cell on this rank, and its optimiser."""

    def __init__(self, cell: Cell, device: torch.device) -> None:
        """Build both. torch's process group must exist."""
        from transformers import LlamaForCausalLM

        with device:
            network = LlamaForCausalLM(_sizes(cell.model)).float()
        precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in network.model.layers:
            layer.compile()
            fully_shard(layer, mp_policy=precision, reshard_after_forward=False)
        fully_shard(network, mp_policy=precision, reshard_after_forward=False)
        self._network, self._device = network, device
        self._optimizer = torch.optim.AdamW(
            network.parameters(), lr=cell.training.learning_rate, fused=True
        )
        self._steps = iter(tokens.on_device(cell, mesh.create(cell.degrees, device)))
        self._loss = torch.compile(_cross_entropy)

    def step(self) -> float:
        """Train one step; returns its loss in nats."""
        network, total = self._network, torch.zeros((), device=self._device)
        batches = next(self._steps)
        for number, (ids, targets) in enumerate(batches, start=1):
            # As our ZeRO-1: weights stay gathered, and gradients are reduced, once a step.
            network.set_requires_gradient_sync(number == len(batches))
            network.set_reshard_after_backward(number == len(batches))
            loss = self._loss(network(input_ids=ids).logits, targets) / len(batches)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()

    def stage_layers(self) -> list[int]:
        """How many layers each stage holds: all are in the only one, because this peer has no
        pipelines.
        """
        return [len(self._network.model.layers)]


def _sizes(model: Model) -> Any:
    """transformers' configuration of a model like ours."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=model.padded_vocabulary_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.attention_heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=model.sequence_length,
        attn_implementation="sdpa",
        use_cache=False,
    )


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
