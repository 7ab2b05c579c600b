"""What ranks exchange in one step of a cell, counted where torch dispatches collectives: below both
backends, so that none of their options is taken at its word.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.training.ranks import on_every_rank
from workflow_lib.records.cell import Cell
from workflow_lib.records.degrees import group_members
from workflow_lib.trainers import engines
from workflow_lib.trainers.native import device as devices
from workflow_lib.trainers.native import mesh as meshes
from workflow_lib.trainers.native.collectives import named_group
from workflow_lib.trainers.native.data import SyntheticTokens, step_batches

KINDS = {
    "c10d::allreduce_": "all-reduce",
    "c10d::reduce_": "reduce",
    "c10d::broadcast_": "broadcast",
    "c10d::_allgather_base_": "gather",
    "c10d::allgather_": "gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::reduce_scatter_": "reduce-scatter",
    "c10d::alltoall_base_": "exchange",
    "c10d::send": "send",
    "c10d::recv_": "receive",
    # What is inside of the project's own operators is not dispatched again.
    "triptych::sum": "all-reduce",
    "triptych::gather": "gather",
    "triptych::sum_to_slices": "reduce-scatter",
    "triptych::exchange": "exchange",
}
PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16"}


class Collectives(TorchDispatchMode):
    """Counts elements by kind, precision and the ranks of the group, but of no single numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, str, tuple[int, ...]]] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        name = function.name().split(".")[0]
        if name in KINDS:
            leaves = tree_leaves((arguments, named or {}))
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            count = max(tensor.numel() for tensor in tensors)
            precision = PRECISIONS.get(tensors[0].dtype, str(tensors[0].dtype))
            if count > 1:
                ranks = tuple(dist.get_process_group_ranks(_group(function, arguments)))
                self.elements[KINDS[name], precision, ranks] += count
        elif name.startswith("c10d::") and name not in (
            "c10d::barrier",
            "c10d::monitored_barrier_",
        ):
            raise NotImplementedError(f"{name} is not counted yet")
        return function(*arguments, **(named or {}))


def _group(function: Any, arguments: tuple[Any, ...]) -> dist.ProcessGroup:
    for argument, value in zip(function._schema.arguments, arguments, strict=False):
        if str(argument.type).endswith("ProcessGroup"):
            return dist.ProcessGroup.unbox(value)
        if argument.name == "group":
            return named_group(value)
    raise TypeError(f"{function} has no group")


def traffic(cell: Cell, device: devices.Device) -> list[list[Any]]:
    """The second step's elements: [axis, kind, precision, count] each, sorted."""
    mesh = meshes.create(cell.degrees, device.torch)
    engine = engines.create(cell, mesh)
    source = SyntheticTokens(cell.model.vocabulary_size)
    engine.train_step(step_batches(source, cell, mesh, 0))
    collectives = Collectives()
    with collectives:
        engine.train_step(step_batches(source, cell, mesh, 1))
    axes = {
        tuple(ranks): name
        for name in ("ep", "pp", "tp", "expert_dp", "dp")
        for ranks in group_members(cell.degrees, name)
    }
    return sorted(
        [axes.get(ranks, str(ranks)), kind, precision, count]
        for (kind, precision, ranks), count in collectives.elements.items()
    )


if __name__ == "__main__":
    on_every_rank(traffic)
