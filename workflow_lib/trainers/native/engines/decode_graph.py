"""A CUDA graph of one generated token.

Kernels that decode a token take microseconds each, and the host needs longer to launch them. A
graph is captured once, and a single call then launches all of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from workflow_lib.trainers.native.device import on_gpu
from workflow_lib.trainers.native.key_value_cache import MovingPlace

#: runs before the capture, in which libraries choose kernels and allocate their workspaces
_WARM_UPS = 3


class DecodeGraph:
    """Chooses the token behind each sequence of a micro-batch, and the one behind that.

    On a CPU, which has no graphs, the same operations run one by one.
    """

    def __init__(
        self,
        following: Callable[[Tensor], Tensor],
        place: MovingPlace,
        sequences: int,
        device: torch.device,
    ) -> None:
        """``following`` takes and returns tokens, [sequences, 1]. It runs all layers at ``place``,
        whose caches must not hold anything yet: on a GPU it is run here, to be captured.
        """
        self._following, self._place = following, place
        self._token = torch.zeros((sequences, 1), dtype=torch.int64, device=device)
        self._replay = self._run
        if on_gpu(device):
            self._replay = self._captured(device).replay

    def begin(self, token: Tensor, length: int) -> None:
        """Start from ``token``, the last that was chosen; ``length`` tokens are before it."""
        self._token.copy_(token)
        self._place.move(length)

    def following(self) -> Tensor:
        """Choose the tokens that follow the last ones, [sequences, 1]."""
        self._replay()
        return self._token.clone()

    def _run(self) -> None:
        self._place.look()
        self._token.copy_(self._following(self._token))
        self._place.advance()

    def _captured(self, device: torch.device) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._place.move(0)
                self._run()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog asks for events in a thread of its own, which must not end the capture.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._run()
        return graph
