"""The stages of a rank, and the schedules that run them: plain and interleaved 1F1B, and torch's
zero-bubble schedules (arXiv 2401.10241), which split the backward pass.

Without overlap a rank waits for all sends and receives after each of its passes. With overlap it
waits for receives where they are used, and for sends at the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    _Action,
    _ComputationType,
    _PipelineSchedule,
    _PipelineScheduleRuntime,
)

from workflow_lib.records.cell import Cell
from workflow_lib.trainers.native.mesh import Mesh
from workflow_lib.trainers.native.precisions import DTYPES
from workflow_lib.trainers.native.sharding import Sharding

LossFunction = Callable[[Tensor, Tensor], Tensor]
Slot = tuple[str, int] | None


class _Packed(nn.Module):
    """Gives its input the strides of a fresh tensor of its shape.

    A batch of one may have any stride along the batch and still counts as contiguous. So the output
    of a compiled layer may keep the stride of the whole sequence. torch 2.11 compares strides with
    those of `_shapes`, and refuses the stage.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous().view(-1).view(x.shape)


class _Stage(PipelineStage):
    """A stage whose gradients FSDP2 reduces within the backward passes.

    torch's own stage would reduce them at once after the last pass. It only does that for FSDP
    modules, so the root is wrapped in a Sequential.
    """

    def __init__(
        self, root: nn.Module, sharding: Sharding, packed: bool, *arguments: Any, **named: Any
    ) -> None:
        """``packed`` says that the output may be a view. A backward pass in two parts does not
        allow this, because it drops the graph behind the output."""
        parts = [root, _Packed()] if packed else [root]
        super().__init__(nn.Sequential(*parts), *arguments, **named)
        assert isinstance(root, FSDPModule)
        self._root, self._sharding = root, sharding

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        # If a rank has two neighbouring stages, torch 2.11 would connect the rank with itself.
        return [
            send for send in super()._get_init_p2p_neighbors_ops() if send.peer != dist.get_rank()
        ]

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        self._sharding.before_backward(self._root, last_backward)
        # Before the last one, other micro-batches are still between forward and backward pass.
        self._root.set_is_last_backward(last_backward)
        result = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        if backward_type == "weight":
            self._sharding.after_weights(self._root, last_backward)
        return result


class _Plain1F1B(_PipelineScheduleRuntime):
    """1F1B on torch's runtime, which starts a receive as soon as its sender may send."""

    def __init__(self, stages: list[_Stage], micro_batches: int, **options: Any) -> None:
        super().__init__(stages, micro_batches, **options)  # type: ignore[no-untyped-call]
        self.pipeline_order = {
            rank: [
                None if slot is None else _Action(rank, _ComputationType(slot[0]), slot[1])
                for slot in slots
            ]
            for rank, slots in enumerate(
                one_forward_one_backward(self.pp_group_size, micro_batches)
            )
        }
        self._prepare_schedule_with_comms(self.pipeline_order)


class _AwaitedPlain1F1B(_Plain1F1B):
    """1F1B that waits, after each pass, for its sends and for what the others sent meanwhile."""

    _step_microbatches = PipelineScheduleMulti._step_microbatches


class _AwaitedInterleaved1F1B(ScheduleInterleaved1F1B):
    """Interleaved 1F1B, with several chunks of the model on each rank, that waits in
    the same way."""

    _step_microbatches = PipelineScheduleMulti._step_microbatches


def one_forward_one_backward(ranks: int, micro_batches: int) -> list[list[Slot]]:
    """The passes of each rank in each time slot (arXiv 2104.04473, figure 4).

    A slot is a pass ("F" or "B") and its micro-batch, or None if the rank waits for another.
    """
    waiting: list[list[tuple[str, int]]] = []
    for rank in range(ranks):
        warm_up = min(ranks - 1 - rank, micro_batches)
        order = [("F", index) for index in range(warm_up)]
        for index in range(micro_batches - warm_up):
            order += [("F", warm_up + index), ("B", index)]
        waiting.append(order + [("B", i) for i in range(micro_batches - warm_up, micro_batches)])
    slots: list[list[Slot]] = [[] for _ in range(ranks)]
    done: set[tuple[int, str, int]] = set()
    while any(waiting):
        now: set[tuple[int, str, int]] = set()
        for rank, order in enumerate(waiting):
            if not order:
                continue
            kind, index = order[0]
            source = rank - 1 if kind == "F" else rank + 1
            ready = not 0 <= source < ranks or (source, kind, index) in done
            slots[rank].append(order.pop(0) if ready else None)
            if ready:
                now.add((rank, kind, index))
        done |= now
    return slots


class Pipeline:
    """A rank's stages under their schedule."""

    def __init__(
        self,
        cell: Cell,
        mesh: Mesh,
        roots: Sequence[nn.Module],
        sharding: Sharding,
        loss: LossFunction,
    ) -> None:
        """``roots`` are this rank's chunks; ``loss`` takes logits and targets of a micro-batch."""
        training, degrees = cell.training, mesh.degrees
        stages = [
            _Stage(
                root,
                sharding,
                degrees.schedule == "1f1b",
                stage,
                degrees.stages,
                mesh.device,
                **_shapes(cell, mesh, stage),
                group=mesh.pp_group,
            )
            for stage, root in zip(degrees.stages_of(mesh.place.pp), roots, strict=True)
        ]
        self._first, self._last = stages[0].is_first, stages[-1].is_last
        kind: Any = {
            ("1f1b", False, False): _AwaitedPlain1F1B,
            ("1f1b", False, True): _Plain1F1B,
            ("1f1b", True, False): _AwaitedInterleaved1F1B,
            ("1f1b", True, True): ScheduleInterleaved1F1B,
            ("zero-bubble", False, True): ScheduleInterleavedZeroBubble,
            ("zero-bubble", True, True): ScheduleInterleavedZeroBubble,
            ("zero-bubble-v", True, True): ScheduleZBVZeroBubble,
        }[degrees.schedule, len(stages) > 1, training.overlap]
        # The loss is already a mean over the replica's micro-batches.
        self._schedule: _PipelineSchedule = kind(
            stages, training.micro_batches(degrees.dp), loss_fn=loss, scale_grads=False
        )

    def step(self, batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Run all passes of a step; return the micro-batches' losses on ranks of the last stage,
        else []."""
        losses: list[Tensor] = []
        # The schedule itself cuts whole batches into micro-batches.
        tokens = [torch.cat([ids for ids, _ in batches])] if self._first else []
        targets = torch.cat([ids for _, ids in batches]) if self._last else None
        self._schedule.step(*tokens, target=targets, losses=losses, return_outputs=False)
        return losses


def _shapes(cell: Cell, mesh: Mesh, stage: int) -> dict[str, Tensor]:
    """The shapes of a stage's input and output for one micro-batch, so that no rank has to ask
    another."""
    model, training, tp = cell.model, cell.training, mesh.degrees.tp
    batch, length = training.micro_batch_size, mesh.degrees.length_of_rank(model.sequence_length)
    activations = DTYPES[training.held_precision]

    def meta(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)

    shown = length // tp if training.sequence_parallel else length
    hidden = meta(batch, shown, model.hidden_size, dtype=activations)
    last = stage == mesh.degrees.stages - 1
    return {
        "input_args": meta(batch, length, dtype=torch.int64) if stage == 0 else hidden,
        "output_args": meta(batch, length, model.padded_vocabulary_size // tp, dtype=activations)
        if last
        else hidden,
    }
