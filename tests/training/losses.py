"""What training a cell gives on a rank: each step's loss and gradient norm.

The third argument is the tokens.json to train on; see ``ranks`` for the others.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.training.ranks import on_every_rank
from workflow_lib.records.cell import Cell
from workflow_lib.trainers import engines
from workflow_lib.trainers.native import device as devices
from workflow_lib.trainers.native import mesh as meshes
from workflow_lib.trainers.native.data import TokenFile, step_batches
from workflow_lib.trainers.native.precisions import checked


def losses(cell: Cell, device: devices.Device, tokens: Path) -> dict[str, Any]:
    """Train a cell as the training program would, without its files."""
    mesh = meshes.create(cell.degrees, device.torch)
    if cell.training.compile:
        torch._dynamo.reset()  # so that this cell compiles what an earlier one may have
        torch._dynamo.utils.counters.clear()
    engine = engines.create(cell, mesh)
    source = TokenFile(tokens, cell.model.vocabulary_size, cell.model.sequence_length + 1)
    steps = cell.training.warmup_steps + cell.training.measured_steps
    values, norms = [], []
    before = checked(cell, engine.precisions(), stepped=False)
    for step in range(steps):
        values.append(engine.train_step(step_batches(source, cell, mesh, step)))
        norms.append(engine.gradient_norm())
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] if cell.training.compile else 0
    return {
        "losses": values,
        "norms": norms,
        "precisions_before": asdict(before),
        "precisions": asdict(checked(cell, engine.precisions(), stepped=True)),
        "parameters": engine.parameters,
        "compiled_graphs": graphs,
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    on_every_rank(lambda cell, device: losses(cell, device, Path(sys.argv[3])))
