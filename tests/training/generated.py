"""What a cell generates on a rank: the tokens that its replica chose in two steps.

Only ranks that have the last stage know them. See ``ranks`` for the arguments.
"""

from __future__ import annotations

import torch

from tests.training.ranks import on_every_rank
from workflow_lib.records.cell import Cell
from workflow_lib.trainers.native import mesh as meshes
from workflow_lib.trainers.native.data import SyntheticTokens, step_batches
from workflow_lib.trainers.native.generation import GenerationEngine
from workflow_lib.trainers.native.mesh import Mesh
from workflow_lib.trainers.native.precisions import checked


def generated(cell: Cell, mesh: Mesh) -> list[list[list[int]]] | None:
    """The tokens of each step, sequence by sequence of the replica; None without the last stage."""
    engine = GenerationEngine(cell, mesh)
    checked(cell, engine.precisions(), stepped=True)
    source = SyntheticTokens(cell.model.vocabulary_size)
    length = cell.model.sequence_length - cell.training.generated_tokens
    steps = []
    for step in range(2):
        engine.prefill([ids[:, :length] for ids, _ in step_batches(source, cell, mesh, step)])
        chosen = engine.decode()
        if chosen is not None:
            steps.append(torch.cat(chosen).tolist())
    engine.close()
    return steps or None


if __name__ == "__main__":
    on_every_rank(lambda cell, device: generated(cell, meshes.create(cell.degrees, device.torch)))
