"""Gradient clipping by the norm of the whole model's gradient, whatever the layout."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from workflow_lib.training.mesh import Mesh

MAXIMUM_GRADIENT_NORM = 1.0


def gradient_norm(module: nn.Module, mesh: Mesh) -> torch.Tensor:
    """The 2-norm of the whole model's gradient, from gradients that are not cut over replicas.

    Each number counts once: a weight that all tensor-parallel ranks hold, on the first of them; one
    that two stages share, on its first stage; experts, on every rank of their group.
    """
    shared = torch.zeros((), device=mesh.device)
    experts = torch.zeros((), device=mesh.device)
    for parameter in module.parameters():
        if parameter.grad is None or getattr(parameter, "ds_pipe_replicated", False):
            continue
        if mesh.place.tp > 0 and not getattr(parameter, "tensor_model_parallel", False):
            continue
        square = parameter.grad.float().square().sum()
        if getattr(parameter, "allreduce", True):
            shared += square
        else:
            experts += square
    if mesh.expert_group is not None:
        dist.all_reduce(experts, group=mesh.expert_group)
    total = shared + experts
    if mesh.replica_group is not None:
        dist.all_reduce(total, group=mesh.replica_group)
    return total.sqrt()


def clip_gradients(
    module: nn.Module, mesh: Mesh, maximum: float = MAXIMUM_GRADIENT_NORM
) -> torch.Tensor:
    """Scale the gradients so that their norm is at most ``maximum``; return the norm before."""
    norm = gradient_norm(module, mesh)
    scale = (maximum / (norm + 1e-6)).clamp(max=1.0)
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(scale.to(parameter.grad.dtype))
    return norm
