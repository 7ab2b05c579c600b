"""The libraries that step a model, each behind the same few calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from workflow_lib.records.cell import Cell
    from workflow_lib.records.training import Precisions
    from workflow_lib.trainers.native.mesh import Mesh


class Engine(Protocol):
    """A cell's model on this rank, and the methods that step it."""

    #: parameters that this rank holds before ZeRO cuts them, over all of its stages
    parameters: int

    def train_step(self, batches: Sequence[tuple[Tensor, Tensor]]) -> float:
        """Do one optimiser step over this replica's micro-batches.

        Each is a pair of [micro-batch size, sequence length] ids: tokens, and the tokens that
        follow them. Returns the loss of the global batch in nats, on every rank. Raises
        NonfiniteGradient if the loss is finite and the gradient is not.
        """
        ...

    def gradient_norm(self) -> float:
        """The norm of the whole model's gradient in the last step, before it was clipped."""
        ...

    def modules(self) -> Sequence[nn.Module]:
        """The modules of the model that this rank holds."""
        ...

    def precisions(self) -> Precisions:
        """The precisions in which the backend holds and exchanges numbers. Some are null before the
        first step."""
        ...


def create(cell: Cell, mesh: Mesh) -> Engine:
    """Build a cell's model with the backend that the cell names; no other backend is imported.

    The default process group must exist already.
    """
    if cell.training.backend == "torch":
        from workflow_lib.trainers.native.torch_engine import TorchEngine

        return TorchEngine(cell, mesh)
    from workflow_lib.trainers.deepspeed.engine import DeepSpeedEngine

    return DeepSpeedEngine(cell, mesh)
