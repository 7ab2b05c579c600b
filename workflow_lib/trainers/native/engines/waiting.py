"""Collectives that never run beside compute, for cells without overlap.

FSDP2 issues its collectives on streams of their own. The classes here make such a stream wait for
the compute issued so far, and later compute wait for the collective. On a CPU there are no streams,
and a collective has ended when its call returns.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from workflow_lib.trainers.native.device import on_gpu

# Every supported version of torch knows only these names of the collectives below.
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


class _Alone:
    """A collective between two waits; its memory comes from the usual allocator."""

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


class AloneAllGather(_Alone):
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


class AloneReduceScatter(_Alone):
    """Reduces a unit's gradients while nothing is computed."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Reduce [ranks · n] elements to this rank's [n]; later compute waits for it."""
        self.wait_for_compute()
        dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group)
        self.hold_compute()


class AfterAllReduce(_Alone):
    """Called by FSDP2 once it has issued its own all-reduce on the current stream.

    That stream already waits for the compute before it; this makes later compute wait for it.
    """

    def __call__(self, reduced: Tensor) -> None:
        """Make later compute wait until ``reduced`` is complete."""
        self.hold_compute()
