"""AdamW, and gradient clipping by the norm of the whole model's gradient, whatever the layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workflow_lib.records.training import Training
from workflow_lib.trainers.native.device import on_gpu
from workflow_lib.trainers.native.mesh import Mesh

MAXIMUM_GRADIENT_NORM = 1.0


class NonfiniteGradient(ArithmeticError):
    """The gradient of a step is NaN or infinite although its loss is not."""


def local_gradient(parameter: nn.Parameter) -> Tensor | None:
    """This rank's part of a parameter's gradient, not copied; None if there is none."""
    gradient = parameter.grad
    # Gradients of weights that are cut over replicas are DTensors.
    to_local = getattr(gradient, "to_local", None)
    return gradient if to_local is None else to_local()


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """This rank's parts of the gradients of those parameters that have one."""
    return [gradient for gradient in map(local_gradient, parameters) if gradient is not None]


@torch.no_grad()
def gradient_norm(parameters: Iterable[nn.Parameter], mesh: Mesh, cut: bool = False) -> Tensor:
    """The 2-norm of the whole model's gradient. ``cut`` says that each replica holds only its part
    of it.

    Each number counts once. A weight that all tensor-parallel ranks hold counts on the first of
    them, and one that two stages share on its first stage. Experts count on every rank of their
    group.
    """
    shared: list[Tensor] = []
    experts: list[Tensor] = []
    for parameter in parameters:
        gradient = local_gradient(parameter)
        if gradient is None or getattr(parameter, "ds_pipe_replicated", False):
            continue
        if mesh.place.tp > 0 and not getattr(parameter, "tensor_model_parallel", False):
            continue
        (shared if getattr(parameter, "allreduce", True) else experts).append(gradient)
    total, expert_total = (_square(gradients, mesh) for gradients in (shared, experts))
    if mesh.expert_group is not None and not cut:
        dist.all_reduce(expert_total, group=mesh.expert_group)
    total += expert_total
    if cut:
        dist.all_reduce(total)
    elif mesh.replica_group is not None:
        dist.all_reduce(total, group=mesh.replica_group)
    return total.sqrt()


def _square(gradients: list[Tensor], mesh: Mesh) -> Tensor:
    """The squared norm of several tensors in fp32."""
    if not gradients:
        return torch.zeros((), device=mesh.device)
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    return torch.stack(norms).square().sum()


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], mesh: Mesh, cut: bool = False) -> Tensor:
    """Scale the gradients so that their norm is at most ``MAXIMUM_GRADIENT_NORM``; return the norm
    before that."""
    parameters = list(parameters)
    norm = gradient_norm(parameters, mesh, cut)
    scale = (MAXIMUM_GRADIENT_NORM / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(local_gradients(parameters), scale)
    return norm


def adamw(
    weights: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    training: Training,
    device: torch.device,
) -> torch.optim.AdamW:
    """AdamW with a cell's options, over weights or groups of them; on GPUs one fused kernel."""
    return torch.optim.AdamW(
        weights,
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        fused=on_gpu(device),
    )
