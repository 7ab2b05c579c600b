"""A plain training loop in one process, which every layout has to agree with."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from tests.training.cells import cell
from workflow_lib.records.cell import Cell
from workflow_lib.records.model import Model
from workflow_lib.trainers.native.data import TokenFile, step_batches
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import Decoder, parts
from workflow_lib.trainers.native.weights import Weights

#: options that change what is trained; others change only how
_WHAT = (
    *("micro_batch_size", "global_batch_size", "routing", "balancing_loss"),
    *("workload", "lora_rank", "learning_rate"),
)


def reference(one: Cell, tokens: Path, device: str = "cpu") -> tuple[list[float], list[float]]:
    """Losses and gradient norms (before clipping) of each step, in fp32, by torch alone."""
    what = {name: getattr(one.training, name) for name in _WHAT}
    return _trained(one.model, tokens, device, **what)


@functools.cache
def _trained(
    model: Model, tokens: Path, device: str, **what: object
) -> tuple[list[float], list[float]]:
    one = cell(model, **what)
    mesh = single_process(torch.device(device))
    adapters = torch.float32 if one.training.workload == "lora" else None
    weights = Weights(mesh, one.training.seed, torch.float32, adapters)
    decoder = Decoder(parts(model, weights, one.training), None)
    optimizer = torch.optim.AdamW(
        decoder.parameters(), lr=one.training.learning_rate, weight_decay=one.training.weight_decay
    )
    source = TokenFile(tokens, model.vocabulary_size, model.sequence_length + 1)
    losses, norms = [], []
    for step in range(one.training.warmup_steps + one.training.measured_steps):
        batches = step_batches(source, one, mesh, step)
        total = 0.0
        for ids, targets in batches:
            loss = decoder(ids, targets) / len(batches)
            loss.backward()
            total += loss.item()
        norms.append(float(torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, norms
