"""Matrix products on GPUs at times that are said beforehand, in a process for each GPU."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: from, to; in seconds after the beginning of a plan
Span = tuple[float, float]
#: rows of the square matrices: products short enough for edges of a millisecond
_ROWS = 4096
#: products that wait in the GPU's queue: enough that it never idles, few enough to stop on time
_QUEUED = 3
#: of a process to start torch and its GPU, in seconds
_START_S = 120.0


def square_waves(waves: Sequence[tuple[float, int]]) -> list[Span]:
    """Spans of square waves (period in s, how many periods) that follow one another. The first half
    of each period is on.
    """
    spans: list[Span] = []
    start = 0.0
    for period_s, count in waves:
        spans += [(start + i * period_s, start + (i + 0.5) * period_s) for i in range(count)]
        start += count * period_s
    return spans


@contextmanager
def working(gpus: Sequence[int], spans: Sequence[Span]) -> Iterator[float]:
    """Let these GPUs work in the spans, until the block is left; gives the wall clock (s) from
    which the spans count. Raises RuntimeError where a process cannot start, or failed.
    """
    context = multiprocessing.get_context("spawn")
    begin = context.Value("d", 0.0)
    ready = [context.Event() for _ in gpus]
    processes = [
        context.Process(target=_work, args=(gpu, list(spans), event, begin), daemon=True)
        for gpu, event in zip(gpus, ready, strict=True)
    ]
    try:
        for process in processes:
            process.start()
        if not all(event.wait(_START_S) for event in ready):
            raise RuntimeError(f"a load process was not ready within {_START_S:.0f} s")
        begin.value = time.time() + 0.5
        yield begin.value
        if any(process.exitcode for process in processes):
            raise RuntimeError("a load process failed; see its message above")
    finally:
        for process in processes:
            process.kill()
            process.join()


def _work(gpu: int, spans: list[Span], ready: Any, begin: Any) -> None:
    import torch

    torch.cuda.set_device(gpu)
    matrix = torch.randn(_ROWS, _ROWS, device="cuda", dtype=torch.bfloat16)
    output = torch.empty_like(matrix)
    torch.mm(matrix, matrix, out=output)  # now, so that nothing is loaded later
    torch.cuda.synchronize()
    events = [torch.cuda.Event() for _ in range(_QUEUED)]
    ready.set()
    while begin.value == 0.0:
        time.sleep(0.01)
    for on, off in spans:
        time.sleep(max(0.0, begin.value + on - 0.001 - time.time()))
        while time.time() < begin.value + on:
            pass
        number = 0
        while time.time() < begin.value + off:
            event = events[number % _QUEUED]
            if number >= _QUEUED:
                event.synchronize()
            torch.mm(matrix, matrix, out=output)
            event.record()
            number += 1
        torch.cuda.synchronize()
    time.sleep(3600)  # with its context, until it is ended
