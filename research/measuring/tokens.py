"""The tokens of a launch's steps, ours and peers': new ones in each step, drawn before the first.

On the same tokens again and again a model learns them within a few steps. What a GPU draws, and so
its clock at the power cap, depends on the numbers that it multiplies (arXiv 2409.18324).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from workflow_lib.records.cell import Cell
from workflow_lib.trainers.native.data import SyntheticTokens, step_batches
from workflow_lib.trainers.native.mesh import Mesh


def steps_of(cell: Cell) -> range:
    """The numbers of a launch's steps: one that compiles, those of the cell, and one that may be
    profiled.
    """
    return range(cell.training.warmup_steps + cell.training.measured_steps + 2)


def on_device(cell: Cell, mesh: Mesh) -> list[list[tuple[Tensor, Tensor]]]:
    """Each step's micro-batches of this rank, as the engine takes them."""
    source = SyntheticTokens(cell.model.vocabulary_size)
    return [step_batches(source, cell, mesh, step) for step in steps_of(cell)]


def on_host(cell: Cell, replica: int, at_once: int) -> list[tuple[Tensor, Tensor]]:
    """All steps' micro-batches of a replica, of ``at_once`` whole sequences each: [at once, length]
    ids, and those that follow them.
    """
    source, length = SyntheticTokens(cell.model.vocabulary_size), cell.model.sequence_length
    count = cell.training.global_batch_size // cell.degrees.dp
    found = []
    for step in steps_of(cell):
        sequences = range(replica * count, (replica + 1) * count)
        rows = [source.sequence(cell.training.seed, step, one, length + 1) for one in sequences]
        for part in torch.split(torch.from_numpy(np.stack(rows)), at_once):
            found.append((part[:, :-1].contiguous(), part[:, 1:].contiguous()))
    return found
