"""Weights, gradients and optimiser states cut over the replicas by FSDP2.

The ZeRO stages (arXiv 1910.02054) mean here:

====  =====================================  ==========================================
 0    every replica holds all                gradients all-reduced once a step
 1    weights gathered once a step           gradients summed whole, reduced once a step
 2    weights gathered once a step           gradients reduced at every micro-batch
 3    weights gathered for each layer and    gradients reduced at every micro-batch
      pass, and let go after it
====  =====================================  ==========================================

The optimiser works on fp32 weights. With bf16, weights are cast before they are gathered, and
gradients are summed and reduced in fp32. Weights of layers may be cast to fp8 instead (float8.py).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import Shard

from workflow_lib.records.training import SUMS, Precisions, Training
from workflow_lib.trainers.native.device import on_gpu
from workflow_lib.trainers.native.float8 import gathered_dtype
from workflow_lib.trainers.native.mesh import Mesh, lone_group
from workflow_lib.trainers.native.precisions import DTYPES, named
from workflow_lib.trainers.native.weights import marks_of


class Sharding:
    """Cuts modules over a cell's replicas, and controls when they communicate."""

    def __init__(self, mesh: Mesh, training: Training) -> None:
        assert mesh.dp_group is not None
        self._stage, self._overlap = training.zero_stage, training.overlap
        self._compiled = training.compile
        self._device = mesh.device
        self._alone = lone_group(mesh.degrees) if self._stage == 0 else None
        self._replicas = self._over(mesh.dp_group)
        self._expert_replicas = (
            self._over(mesh.expert_dp_group) if mesh.expert_dp_group is not None else None
        )
        self._precision = (
            MixedPrecisionPolicy()
            if training.precision == SUMS
            else MixedPrecisionPolicy(DTYPES[training.held_precision], DTYPES[SUMS])
        )
        #: units in the order of the forward pass
        self._units: list[FSDPModule] = []

    @property
    def cut(self) -> bool:
        """Whether a replica holds only a part of the gradients that the optimiser sees."""
        return self._stage > 0

    def apply(self, module: nn.Module, keep: bool = False) -> None:
        """Make a module a unit that is gathered and reduced at once; its spread experts become
        another one.

        With ``keep`` its weights stay gathered after the forward pass in ZeRO-3 too, because the
        backward pass begins with them.
        """
        experts = [part for part in module.modules() if _spread(part)]
        for part in experts:
            assert self._expert_replicas is not None
            self._unit(part, self._expert_replicas, keep)
        self._unit(module, self._replicas, keep)
        self._units += [unit for unit in (module, *experts) if isinstance(unit, FSDPModule)]

    def finish(self, root: nn.Module) -> None:
        """Make a stage one tree: weights that belong to no unit yet belong to its root."""
        self._unit(root, self._replicas, keep=True)
        if self._overlap:
            # The host asks for the next unit's weights before it launches this one's kernels.
            for unit, following in pairwise(self._units):
                unit.set_modules_to_forward_prefetch([following])
        self._units = []

    def before_backward(self, root: FSDPModule, last: bool) -> None:
        """Set what the next backward pass does; ``last`` says that it is of the step's last
        micro-batch."""
        root.set_requires_gradient_sync(last or self._stage >= 2)
        root.set_reshard_after_backward(last or self._stage == 3)

    @staticmethod
    def after_weights(root: FSDPModule, last: bool) -> None:
        """Sum the gradients of weights after a backward pass for weights only, and with ``last``
        reduce them. FSDP2 does this by itself only after a backward pass through the whole stage.
        """
        assert isinstance(root, nn.Module)
        for group in (unit._get_fsdp_state()._fsdp_param_group for unit in _units(root)):
            if group is not None:
                group.post_backward()
        if last:
            root._get_fsdp_state()._root_post_backward_final_callback()

    @staticmethod
    def precisions(roots: Iterable[nn.Module]) -> Precisions:
        """The precisions that the units of some stages have by FSDP2's rules; moments are not
        included."""
        weights: set[torch.dtype] = set()
        gathered: set[torch.dtype] = set()
        reduced: set[torch.dtype] = set()
        held: set[torch.dtype] = set()
        units = (unit for root in roots for unit in _units(root))
        for group in (unit._get_fsdp_state()._fsdp_param_group for unit in units):
            if group is None:  # without weights of its own
                continue
            for parameter in (fsdp_param.sharded_param for fsdp_param in group.fsdp_params):
                computing = group.mp_policy.param_dtype or parameter.dtype
                weights.add(computing)
                gathered.add(gathered_dtype(parameter) or computing)
                if parameter.requires_grad:
                    reduced.add(group.mp_policy.reduce_dtype or computing)
                    held.add(parameter.dtype)
        return Precisions(
            weights=named(weights),
            # Sums of whole gradients have the reduced precision, those of cut gradients the held
            # one.
            gradients=named(reduced | held),
            reduction=named(reduced),
            gathering=named(gathered),
            master_weights=named(held),
        )

    def _over(self, group: dist.ProcessGroup) -> DeviceMesh:
        if self._stage > 0:
            return DeviceMesh.from_group(group, self._device.type)
        # Replicated: cut over a group of only this rank, and all-reduced over the replicas.
        assert self._alone is not None
        return DeviceMesh.from_group(
            [group, self._alone],
            self._device.type,
            mesh=torch.tensor(dist.get_process_group_ranks(group)).unsqueeze(1),
            mesh_dim_names=("replicas", "cut"),
        )

    def _unit(self, module: nn.Module, mesh: DeviceMesh, keep: bool) -> None:
        marks = {name: marks_of(parameter) for name, parameter in module.named_parameters()}
        unit = fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=self._stage == 3 and not keep,
            shard_placement_fn=functools.partial(_placement, mesh.size(-1)),
            mp_policy=self._precision,
        )
        if not on_gpu(self._device):
            unit.set_force_sum_reduction_for_comms(True)  # gloo has no averages
        if not self._overlap:
            unit.set_custom_all_gather(AloneAllGather(self._device))  # type: ignore[arg-type]
            if self._stage == 0:
                unit.set_all_reduce_hook(AfterAllReduce(self._device))
        kept = self._stage < 2  # until the optimiser has stepped
        reduce_scatter = ReduceScatter if self._overlap else AloneReduceScatter
        unit.set_custom_reduce_scatter(reduce_scatter(self._device, kept))  # type: ignore[arg-type]
        if self._compiled:
            _compile_sums(unit)
        # FSDP2 replaces the parameters; the new ones get the marks of the old ones.
        for name, parameter in module.named_parameters():
            vars(parameter).update(marks[name])


def _units(root: nn.Module) -> Iterator[FSDPModule]:
    """The units of a stage, which are gathered and reduced at once, with the stage itself first."""
    return (module for module in root.modules() if isinstance(module, FSDPModule))


def _placement(ranks: int, parameter: nn.Parameter) -> Shard | None:
    """The dimension along which a weight is cut. Experts are cut by rows if there are fewer experts
    than ranks, or if they would be spread unevenly. Other weights are cut by FSDP2's default, along
    the first dimension."""
    stacked = parameter.dim() == 3
    if stacked and parameter.shape[0] % ranks and parameter.shape[1] % ranks == 0:
        return Shard(1)
    return None


def _spread(module: nn.Module) -> bool:
    """Whether a module holds experts that differ between ranks of an expert-parallel group."""
    kinds = {
        getattr(parameter, "allreduce", True) for parameter in module.parameters(recurse=False)
    }
    if len(kinds) > 1:
        raise TypeError(
            f"{type(module).__name__} holds spread experts beside other weights, which FSDP2 "
            "cannot reduce over different groups: put the experts into a module of their own"
        )
    return kinds == {False}


def _compile_sums(unit: FSDPModule) -> None:
    """Have a kernel of torch.compile add a unit's gradients of micro-batches to their sums.

    That of torch for tensors of two types reaches half of the pace of an H200's memory.
    """
    group = unit._get_fsdp_state()._fsdp_param_group
    for parameter in group.fsdp_params if group is not None else ():
        # The method of this name, with which FSDP2 does the same.
        add_up = functools.partial(_add_up, parameter)
        parameter.accumulate_unsharded_grad_if_needed = add_up  # type: ignore[method-assign]


def _add_up(parameter: FSDPParam) -> None:
    total, held = parameter.unsharded_accumulated_grad, parameter.unsharded_param
    if total is not None and held.grad is not None:
        _compiled_add()(total.view(-1), held.grad.view(-1))
        held.grad = None


@functools.cache
def _compiled_add() -> Callable[[Tensor, Tensor], Tensor]:
    return torch.compile(Tensor.add_, dynamic=True)


# Every supported version of torch knows only these names of the collectives below.
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


class _Collective:
    """A collective as FSDP2 calls it, and what lets it run alone, for cells without overlap.

    FSDP2 issues its collectives on streams of their own. Such a stream here waits for the compute
    issued so far, and later compute waits for the collective. On a CPU there are no streams, and a
    collective has ended when its call returns.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised buffer, as FSDP2 asks for it."""
        return torch.empty(*size, dtype=dtype, device=device)

    def wait_for_compute(self) -> None:
        """Make the collective's stream, which is the current one, wait for the compute issued so
        far."""
        if on_gpu(self._device):
            torch.cuda.current_stream(self._device).wait_stream(
                torch.cuda.default_stream(self._device)
            )

    def hold_compute(self) -> None:
        """Make compute that is issued from now on wait for the current stream."""
        if on_gpu(self._device):
            torch.cuda.default_stream(self._device).wait_stream(
                torch.cuda.current_stream(self._device)
            )


class AloneAllGather(_Collective):
    """Gathers a unit's weights while nothing is computed."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Gather [n] elements of each rank into [ranks · n]; later compute waits for it."""
        self.wait_for_compute()
        dist.all_gather_into_tensor(output_tensor, input_tensor, group=group)
        self.hold_compute()


class ReduceScatter(_Collective):
    """Reduces a unit's gradients beside compute.

    The allocator keeps what a stream lets go for that stream. FSDP2 allocates a rank's slices of
    the gradients on the collective's stream. So they would take memory of their own, beside that
    of the whole gradients, which are let go just then. Slices that are ``kept`` until the optimiser
    has stepped are allocated on compute's stream instead: the collective waits for compute before
    it writes them, and compute for it before it reads them. ZeRO-2 and 3 add the slices of a
    micro-batch to those before, and let them go while the collective's stream still reads them.
    """

    def __init__(self, device: torch.device, kept: bool) -> None:
        super().__init__(device)
        self._kept = kept

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised buffer, as FSDP2 asks for it."""
        if not (self._kept and on_gpu(self._device)):
            return super().allocate(size, dtype=dtype, device=device)
        with torch.cuda.stream(torch.cuda.default_stream(self._device)):
            return super().allocate(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Reduce [ranks · n] elements to this rank's [n]."""
        dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group)


class AloneReduceScatter(ReduceScatter):
    """Reduces a unit's gradients while nothing is computed."""

    def __call__(self, *arguments: Any, **named: Any) -> None:
        """Reduce [ranks · n] elements to this rank's [n]; later compute waits for it."""
        self.wait_for_compute()
        super().__call__(*arguments, **named)
        self.hold_compute()


class AfterAllReduce(_Collective):
    """Called by FSDP2 once it has issued its own all-reduce on the current stream.

    That stream already waits for the compute before it; this makes later compute wait for it.
    """

    def __call__(self, reduced: Tensor) -> None:
        """Make later compute wait until ``reduced`` is complete."""
        self.hold_compute()
