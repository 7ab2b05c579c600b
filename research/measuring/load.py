"""Work on GPUs at times that are said beforehand, in a process for each GPU: matrix products, or
copies within a GPU's memory.
"""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

#: from, to; in seconds after the beginning of a plan
Span = tuple[float, float]
#: rows of the square matrices: products short enough for edges of a millisecond
ROWS = 4096
#: in place of rows: copies. They keep far below the power limit, so that a GPU's clock, and with it
#: its power, stays the same.
COPIES = 0
#: of a copy: with what it writes twice what an H200's cache holds, and 30 µs of its time
_COPIED_BYTES = 2**26
#: pieces of work that wait in a GPU's queue: enough that it never idles, few enough to stop on time
_QUEUED = 3
#: of a process to start torch and its GPU, in seconds
_START_S = 120.0


class Wave(NamedTuple):
    """So many periods of a square wave."""

    period_s: float
    count: int
    #: share of each period, from its beginning, in which the GPU works
    duty: float = 0.5

    @property
    def duration_s(self) -> float:
        """How long it takes."""
        return self.period_s * self.count


def square_waves(waves: Sequence[Wave]) -> list[Span]:
    """Spans of work in waves that follow one another."""
    spans: list[Span] = []
    start = 0.0
    for wave in waves:
        begins = [start + i * wave.period_s for i in range(wave.count)]
        spans += [(begin, begin + wave.duty * wave.period_s) for begin in begins]
        start += wave.duration_s
    return spans


@contextmanager
def working(
    gpus: Sequence[int], spans: Sequence[Span], rows: int = ROWS
) -> Iterator[tuple[float, list[Sequence[float]]]]:
    """Let these GPUs work in the spans, by products of matrices with so many rows or by ``COPIES``,
    until the block is left.

    Gives the wall clock (s) from which the spans count, and for each GPU when its work began and
    ended, span by span, by the same clock; 0 where that is still to come. Raises RuntimeError where
    a process cannot start, or failed.
    """
    context = multiprocessing.get_context("spawn")
    begin = context.Value("d", 0.0)
    edges = [context.RawArray("d", 2 * len(spans)) for _ in gpus]
    ready = [context.Event() for _ in gpus]
    processes = [
        context.Process(
            target=_work, args=(gpu, list(spans), rows, event, begin, of_gpu), daemon=True
        )
        for gpu, event, of_gpu in zip(gpus, ready, edges, strict=True)
    ]
    try:
        for process in processes:
            process.start()
        if not all(event.wait(_START_S) for event in ready):
            raise RuntimeError(f"a load process was not ready within {_START_S:.0f} s")
        begin.value = time.time() + 0.5
        yield begin.value, edges
        if any(process.exitcode for process in processes):
            raise RuntimeError("a load process failed; see its message above")
    finally:
        for process in processes:
            process.kill()
            process.join()


def _work(gpu: int, spans: list[Span], rows: int, ready: Any, begin: Any, edges: Any) -> None:
    import torch

    torch.cuda.set_device(gpu)
    if rows == COPIES:
        source = torch.zeros(_COPIED_BYTES, device="cuda", dtype=torch.uint8)
        piece = functools.partial(torch.empty_like(source).copy_, source)
    else:
        matrix = torch.randn(rows, rows, device="cuda", dtype=torch.bfloat16)
        piece = functools.partial(torch.mm, matrix, matrix, out=torch.empty_like(matrix))
    piece()  # now, so that nothing is loaded later
    torch.cuda.synchronize()
    events = [torch.cuda.Event() for _ in range(_QUEUED)]
    ready.set()
    while begin.value == 0.0:
        time.sleep(0.01)
    for place, (on, off) in enumerate(spans):
        time.sleep(max(0.0, begin.value + on - 0.001 - time.time()))
        while time.time() < begin.value + on:
            pass
        number = 0
        edges[2 * place] = time.time()
        while time.time() < begin.value + off:
            event = events[number % _QUEUED]
            if number >= _QUEUED:
                event.synchronize()
            piece()
            event.record()
            number += 1
        torch.cuda.synchronize()
        edges[2 * place + 1] = time.time()
    time.sleep(3600)  # with its context, until it is ended
