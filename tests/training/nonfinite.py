"""What a cell raises where one gradient is NaN and the loss is not: the exception's name.

See ``ranks`` for the arguments.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.training.ranks import on_every_rank
from workflow_lib.records.cell import Cell
from workflow_lib.trainers import engines
from workflow_lib.trainers.native import device as devices
from workflow_lib.trainers.native import mesh as meshes
from workflow_lib.trainers.native.data import SyntheticTokens, step_batches
from workflow_lib.trainers.native.layers import RMSNorm


class _Poison(torch.autograd.Function):
    @staticmethod
    def forward(context: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: object, *gradients: Tensor) -> Tensor:
        return gradients[0] * float("nan")


def raised(cell: Cell, device: devices.Device) -> str | None:
    """Train one step with NaN for the gradient of every norm's result."""
    mesh = meshes.create(cell.degrees, device.torch)
    engine = engines.create(cell, mesh)
    plain = RMSNorm.forward
    RMSNorm.forward = lambda self, x: _Poison.apply(plain(self, x))  # type: ignore[method-assign]
    try:
        engine.train_step(step_batches(SyntheticTokens(cell.model.vocabulary_size), cell, mesh, 0))
    except ArithmeticError as error:
        return type(error).__name__
    finally:
        RMSNorm.forward = plain  # type: ignore[method-assign]
    return None


if __name__ == "__main__":
    on_every_rank(raised)
