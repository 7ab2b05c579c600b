"""Compares the gradients of a cell with those of one process, on CPUs.

Each rank returns the loss's and the largest gradient's error, relative to the largest number of the
same weight. See ``ranks`` for the arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.training.ranks import on_every_rank
from workflow_lib.records.cell import Cell
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training
from workflow_lib.trainers.native import mesh as meshes
from workflow_lib.trainers.native.model import Decoder, parts
from workflow_lib.trainers.native.weights import Weights


@dataclass(frozen=True)
class Recorded(Weights):
    """Weights that remember what they were drawn for."""

    drawn: list[tuple[Sequence[str], nn.Parameter]] = field(default_factory=list)
    constants: list[nn.Parameter] = field(default_factory=list)

    def stacked(self, names, shapes, *arguments, **named):
        parameter = super().stacked(names, shapes, *arguments, **named)
        self.drawn.append((names, [shape[0] for shape in shapes], parameter))
        return parameter

    def experts(self, names, shape, *arguments, **named):
        parameter = super().experts(names, shape, *arguments, **named)
        flat = [name for expert in names for name in expert]
        self.drawn.append((flat, [shape[0]] * len(flat), parameter))
        return parameter

    def constant(self, *arguments, **named):
        self.constants.append(super().constant(*arguments, **named))
        return self.constants[-1]

    def gradients(self) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The gradients of the drawn matrices by name, and of the constants in their order."""
        named = {}
        for names, rows, parameter in self.drawn:
            pieces = parameter.grad.reshape(-1, parameter.shape[-1]).split(rows)
            named.update(zip(names, pieces, strict=True))
        return named, [constant.grad for constant in self.constants]


@dataclass(frozen=True)
class Given(Weights):
    """Matrices and vectors that are looked up instead of drawn, and cut as those are."""

    named: dict[str, Tensor] = field(default_factory=dict)
    in_order: list[Tensor] = field(default_factory=list)
    #: columns of queries, keys and values
    joined: tuple[int, int, int] = (0, 0, 0)

    def _draw(self, name, shape, deviation):
        return self.named[name].clone()

    def constant(self, size, value, split=None):
        # The biases of queries, keys and values lie in one vector, each cut by itself.
        pieces = self.joined if split == 0 and size == sum(self.joined) else (size,)
        whole = self.in_order.pop(0).split(pieces)
        return self._parameter(torch.cat([self._cut(each, split) for each in whole]), split)


def micro_batches(training: Training) -> list[tuple[Tensor, Tensor]]:
    """All micro-batches of a step, over all replicas."""
    generator = torch.Generator().manual_seed(1)
    count = training.global_batch_size // training.micro_batch_size
    shape = (count, training.micro_batch_size, 65)
    ids = torch.randint(257, shape, generator=generator)
    return [(each[:, :-1], each[:, 1:]) for each in ids]


def accumulate(decoder: Decoder, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Leave the mean gradient of micro-batches in a model; return their mean loss."""
    total = 0.0
    for tokens, targets in batches:
        loss = decoder(tokens, targets) / len(batches)
        loss.backward()
        total += loss.item()
    return total


def relative_error(value: Tensor, expected: Tensor) -> float:
    """The largest difference, in parts of the largest expected number."""
    return float((value - expected).abs().max() / expected.abs().max())


@functools.cache
def expected_of(model: Model, training: Training) -> tuple[float, dict[str, Tensor], list[Tensor]]:
    """The loss and the gradients in one process."""
    recorded = Recorded(meshes.single_process(torch.device("cpu")), 7, torch.float32)
    decoder = Decoder(parts(model, recorded, training), None)
    return accumulate(decoder, micro_batches(training)), *recorded.gradients()


def compare(cell: Cell) -> tuple[float, float]:
    """The errors of the loss and of the gradients on this rank."""
    model, degrees, training = replace(cell.model, layers=2), cell.degrees, cell.training
    plain = replace(training, sequence_parallel=False, overlap=False, recomputation="none")
    expected_loss, named, in_order = expected_of(model, plain)

    mesh = meshes.create(degrees, torch.device("cpu"))
    joined = (model.query_size, model.key_value_size, model.key_value_size)
    given = Given(mesh, 7, torch.float32, named=named, in_order=list(in_order), joined=joined)
    expected = Decoder(parts(model, given, training), mesh.tp_group)
    decoder = Decoder(parts(model, Weights(mesh, 7, torch.float32), training), mesh.tp_group)
    mine = micro_batches(training)[mesh.place.dp :: degrees.dp]
    loss = torch.tensor(accumulate(decoder, mine))
    dist.all_reduce(loss, group=mesh.dp_group)
    worst = 0.0
    for parameter, gradient in zip(decoder.parameters(), expected.parameters(), strict=True):
        # A rank's experts have seen the tokens of all replicas in its expert-parallel group.
        everywhere = getattr(parameter, "allreduce", True)
        group = mesh.dp_group if everywhere else mesh.expert_dp_group
        dist.all_reduce(parameter.grad, group=group)
        worst = max(worst, relative_error(parameter.grad / degrees.dp, gradient))
    return abs(float(loss) / degrees.dp - expected_loss), worst


if __name__ == "__main__":
    on_every_rank(lambda cell, _: compare(cell))
