"""A cell's model on this rank under torch alone.

``workflow_lib.trainers.capabilities``, which the planner reads, lists what it cannot run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from workflow_lib.records.cell import Cell
from workflow_lib.records.training import SUMS, Precisions, Training
from workflow_lib.trainers.native.feed_forward import compile_join
from workflow_lib.trainers.native.float8 import find_scales, precision_of_products
from workflow_lib.trainers.native.mesh import Mesh, end_stages_group
from workflow_lib.trainers.native.model import (
    Loss,
    Part,
    TransformerLayer,
    held_parameters,
    parts,
    split_into_stages,
)
from workflow_lib.trainers.native.optimizer import (
    NonfiniteGradient,
    adamw,
    clip_gradients,
    local_gradients,
)
from workflow_lib.trainers.native.precisions import DTYPES, MOMENTS, named
from workflow_lib.trainers.native.sharding import Sharding
from workflow_lib.trainers.native.weights import Weights

Batch = tuple[Tensor, Tensor]


class Chunk(nn.Module):
    """Consecutive parts of the model, each cut over the replicas as soon as it has been built.

    So a rank holds only one whole part at a time, beside its slices of the others.
    """

    def __init__(self, sequence: Sequence[Part], sharding: Sharding, compiled: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        #: parameters before they are cut; those of a module that occurs twice count once
        self.held_parameters = 0
        shared = {part.tied for part in sequence if sequence.count(part) > 1} - {None}
        built: dict[str, nn.Module] = {}
        for place, part in enumerate(sequence):
            if part.tied is not None and part.tied in built:
                self.parts.append(built[part.tied])
                continue
            module = part.build()
            self.held_parameters += held_parameters(module)
            if compiled and isinstance(module, TransformerLayer):
                compile_join()
                module.compile(dynamic=False)
            if part.tied is not None:
                built[part.tied] = module
            # Parts with only vectors are not worth a collective of their own, so the chunk's root
            # takes them. It also takes what the first and last part of one chunk share.
            if part.tied not in shared and any(p.dim() > 1 for p in module.parameters()):
                sharding.apply(module, keep=place == len(sequence) - 1)
            self.parts.append(module)
        sharding.finish(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map token ids or hidden states to hidden states or logits."""
        for part in self.parts:
            x = part(x)
        return x


class TorchEngine:
    """A cell's model on this rank, stepped by torch."""

    def __init__(self, cell: Cell, mesh: Mesh) -> None:
        """Build and place the model. The default process group must exist already."""
        training, degrees = cell.training, mesh.degrees
        self._mesh = mesh
        self._micro_batches = training.micro_batches(degrees.dp)
        self._loss = Loss(mesh.tp_group, training.compile)
        self._held = training.held_precision
        self._sharding = Sharding(mesh, training)
        held = _held_precision(training)
        lora = training.workload == "lora"
        weights = Weights(mesh, training.seed, held, adapters=DTYPES[SUMS] if lora else None)
        sequence = parts(cell.model, weights, training)
        of_stages = split_into_stages(sequence, degrees.layers_of_stages(cell.model.layers))
        #: this rank's stages, first to last
        self.chunks = chunks = [
            Chunk(of_stages[stage], self._sharding, training.compile)
            for stage in degrees.stages_of(mesh.place.pp)
        ]
        self.parameters = sum(chunk.held_parameters for chunk in chunks)
        self._weights = [p for chunk in chunks for p in chunk.parameters() if p.requires_grad]
        self._tied, self._tied_group = _tied_over_stages(of_stages, chunks, mesh)
        self._optimizer = adamw(self._weights, training, mesh.device)
        self._gathers_float8 = training.gathers_float8
        if self._gathers_float8:
            find_scales(chunks)
        if degrees.pp > 1:
            from workflow_lib.trainers.native.pipeline import Pipeline

            self._pipeline = Pipeline(cell, mesh, chunks, self._sharding, self._share_of_loss)
        self._norm = math.nan
        #: precision of gradients at the first step
        self._gradients: str | None = None

    def train_step(self, batches: Sequence[Batch]) -> float:
        """Do one optimiser step over this replica's micro-batches.

        Returns the loss of the global batch in nats, on every rank. Raises NonfiniteGradient if the
        loss is finite and the gradient is not.
        """
        mesh = self._mesh
        if mesh.degrees.pp > 1:
            losses = self._pipeline.step(batches)
        else:
            losses = [self._forward_backward(*batch, batch is batches[-1]) for batch in batches]
        total = torch.zeros((), device=mesh.device)
        for loss in losses:
            total += loss.detach()
        # Ranks without the last stage add 0.
        if mesh.degrees.pp > 1:
            dist.all_reduce(total, group=mesh.pp_group)
        if mesh.degrees.copies > 1:
            dist.all_reduce(total, group=mesh.dp_group)
        self._correct_gradients()
        if self._gradients is None:
            self._gradients = named(part.dtype for part in local_gradients(self._weights))
        norm = clip_gradients(self._weights, mesh, self._sharding.cut)
        self._optimizer.step()
        if self._gathers_float8:
            find_scales(self.chunks)
        self._optimizer.zero_grad()
        # Only here the step waits for the device.
        value: float
        value, self._norm = torch.stack([total / mesh.degrees.copies, norm]).tolist()
        if math.isfinite(value) and not math.isfinite(self._norm):
            raise NonfiniteGradient(f"the norm of the gradient is {self._norm} (the loss {value})")
        return value

    def gradient_norm(self) -> float:
        """The norm of the whole model's gradient in the last step, before it was clipped."""
        return self._norm

    def modules(self) -> Sequence[nn.Module]:
        """The modules of the model that this rank holds."""
        return self.chunks

    def precisions(self) -> Precisions:
        """The precisions that FSDP2 was given; those of gradients and moments are from the steps so
        far."""
        moments = (state[name] for state in self._optimizer.state.values() for name in MOMENTS)
        return replace(
            self._sharding.precisions(self.chunks),
            **({"gradients": self._gradients} if self._gradients else {}),
            moments=named(moment.dtype for moment in moments),
            products=precision_of_products(self.chunks, self._held),
        )

    def _forward_backward(self, tokens: Tensor, targets: Tensor, last: bool) -> Tensor:
        (chunk,) = self.chunks
        assert isinstance(chunk, FSDPModule)
        self._sharding.before_backward(chunk, last)
        loss = self._share_of_loss(chunk(tokens), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _share_of_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A micro-batch's part of the replica's mean loss."""
        loss: Tensor = self._loss(logits, targets)
        return loss / self._micro_batches

    @torch.no_grad()
    def _correct_gradients(self) -> None:
        """Correct gradients that FSDP2 has averaged over its own group only."""
        tied = local_gradients(self._tied)
        if len(tied) == 2:
            tied[1].copy_(tied[0].add_(tied[1]))
        elif tied:
            dist.all_reduce(tied[0], group=self._tied_group)
        if self._mesh.degrees.ep > 1:
            # Experts saw the tokens of ep replicas each, but were averaged only over dp / ep.
            experts = [p for p in self._weights if not getattr(p, "allreduce", True)]
            if gradients := local_gradients(experts):  # frozen experts have none
                torch._foreach_div_(gradients, float(self._mesh.degrees.ep))


def _held_precision(training: Training) -> torch.dtype:
    """The precision in which weights are held: fp32 if the optimiser changes them, else as computed
    with."""
    frozen = training.workload == "lora"
    return DTYPES[training.held_precision if frozen else SUMS]


def _tied_over_stages(
    of_stages: list[list[Part]], chunks: list[Chunk], mesh: Mesh
) -> tuple[list[nn.Parameter], dist.ProcessGroup | None]:
    """This rank's copies of the weight that the first and the last stage share, and the group of
    the two ranks; the group is None if one rank has both stages."""
    degrees = mesh.degrees
    if degrees.pp == 1 or not any(part.tied for part in of_stages[0]):
        return [], None
    mine, end = degrees.stages_of(mesh.place.pp), degrees.stages - 1
    together = degrees.stages_of(0)[-1] == end
    group = None if together else end_stages_group(degrees)
    copies = []
    for stage, chunk in zip(mine, chunks, strict=True):
        if stage in (0, end):
            place = next(place for place, part in enumerate(of_stages[stage]) if part.tied)
            copies.append(next(chunk.parts[place].parameters()))
        if stage == end:
            copies[-1].ds_pipe_replicated = True  # type: ignore[attr-defined]
    return copies, group
