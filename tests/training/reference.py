"""A plain training loop in one process, which every layout has to agree with."""

from __future__ import annotations

from pathlib import Path

import torch

from workflow_lib.records import Cell
from workflow_lib.trainers.native.data import TokenFile, step_batches
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import Decoder, parts
from workflow_lib.trainers.native.weights import Weights


def reference(cell: Cell, tokens: Path, device: str = "cpu") -> tuple[list[float], list[float]]:
    """Losses and gradient norms (before clipping) of each step, in fp32, by torch alone."""
    mesh = single_process(torch.device(device))
    adapters = torch.float32 if cell.training.workload == "lora" else None
    weights = Weights(mesh, cell.training.seed, torch.float32, adapters)
    model = Decoder(parts(cell.model, weights, cell.training), None)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=cell.training.learning_rate,
        weight_decay=cell.training.weight_decay,
    )
    source = TokenFile(tokens, cell.model.vocabulary_size, cell.model.sequence_length + 1)
    losses, norms = [], []
    for step in range(cell.training.warmup_steps + cell.training.measured_steps):
        batches = step_batches(source, cell, mesh, step)
        total = 0.0
        for ids, targets in batches:
            loss = model(ids, targets) / len(batches)
            loss.backward()
            total += loss.item()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, norms
