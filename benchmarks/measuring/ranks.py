"""A load like training's: on every GPU matrix products, then an all-reduce, step after step."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

#: more steps than any run here has
_MOST_STEPS = 200_000
#: ranks are never this many steps apart, since each step ends with an all-reduce
_STEPS_AHEAD = 10
#: how long the first steps may take to come
_START_S = 120.0


class Ranks:
    """A process for each GPU, in step with each other; the first one's steps are timed."""

    def __init__(self, gpus: int, matrix: int, products: int, all_reduce_bytes: int) -> None:
        """Start them, and wait for the first steps. Raises RuntimeError where a rank ends."""
        context = multiprocessing.get_context("spawn")
        self._ends = context.RawArray("d", _MOST_STEPS)
        self._count = context.RawValue("q", 0)
        self._stop_at = context.RawValue("q", _MOST_STEPS)
        self._stop = context.Event()
        self._directory = tempfile.TemporaryDirectory()
        meet = str(Path(self._directory.name) / "meet")
        shared = (self._ends, self._count, self._stop_at, self._stop)
        work = (matrix, products, all_reduce_bytes)
        self._processes = [
            context.Process(target=_rank, args=(rank, gpus, meet, work, shared), daemon=True)
            for rank in range(gpus)
        ]
        for process in self._processes:
            process.start()
        deadline = time.monotonic() + _START_S
        try:
            while self._count.value < 3:
                self.check()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no step within {_START_S:.0f} s")
                time.sleep(0.1)
        except RuntimeError:
            self.close()
            raise

    def check(self) -> None:
        """Raises RuntimeError where a rank has ended."""
        ended = [rank for rank, one in enumerate(self._processes) if not one.is_alive()]
        if ended:
            raise RuntimeError(f"ranks {ended} ended; see their messages above")

    def step_ends(self) -> list[float]:
        """The wall clock at the end of every step so far."""
        return list(self._ends[: self._count.value])

    def close(self) -> None:
        """End all ranks after the same step."""
        self._stop.set()
        for process in self._processes:
            process.join(15)
            if process.is_alive():
                process.kill()
                process.join()
        self._directory.cleanup()


def _rank(rank: int, ranks: int, meet: str, work: tuple[Any, ...], shared: tuple[Any, ...]) -> None:
    try:
        _steps(rank, ranks, meet, *work, *shared)
    except Exception:  # the parent sees only that the process has ended
        traceback.print_exc()
        sys.exit(1)


def _steps(
    rank: int,
    ranks: int,
    meet: str,
    matrix: int,
    products: int,
    all_reduce_bytes: int,
    ends: Any,
    count: Any,
    stop_at: Any,
    stop: Any,
) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    weights = torch.randn(matrix, matrix, device="cuda", dtype=torch.bfloat16)
    output = torch.empty_like(weights)
    gradients = torch.zeros(all_reduce_bytes // 2, device="cuda", dtype=torch.bfloat16)
    step = 0
    while step < min(stop_at.value, _MOST_STEPS):
        for _ in range(products):
            torch.mm(weights, weights, out=output)
        dist.all_reduce(gradients)
        torch.cuda.synchronize()
        if rank == 0:
            ends[step] = time.time()
            count.value = step + 1
            if stop.is_set() and stop_at.value == _MOST_STEPS:
                stop_at.value = step + _STEPS_AHEAD
        step += 1
    dist.destroy_process_group()
