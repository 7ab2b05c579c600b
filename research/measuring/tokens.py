"""The tokens of a launch's steps: new ones in each step, drawn before the first.

On the same tokens again and again a model learns them within a few steps. What a GPU draws, and so
its clock at the power cap, depends on the numbers that it multiplies (arXiv 2409.18324).
"""

from __future__ import annotations

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
