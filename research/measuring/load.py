"""Matrix products on GPUs at times that are said beforehand, in a process for each GPU.

Nothing here imports torch before a process needs it, so that processes which only read sensors stay
small.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

#: from, to; in seconds after the beginning of a plan
Span = tuple[float, float]
#: products that wait in the GPU's queue: enough that it never idles, few enough to stop on time
_QUEUED = 3
#: of a process to start torch and its GPU
_START_S = 120.0


def square_waves(waves: Sequence[tuple[float, float]]) -> tuple[list[Span], list[float], float]:
    """Spans of square waves (period, duration; s) that follow one another, each with whole periods;
    when each wave begins; and when the last one ends.
    """
    spans: list[Span] = []
    begins: list[float] = []
    start = 0.0
    for period_s, duration_s in waves:
        count = max(1, round(duration_s / period_s))
        begins.append(start)
        spans += [(start + i * period_s, start + (i + 0.5) * period_s) for i in range(count)]
        start += count * period_s
    return spans, begins, start


def bursts(start_s: float, end_s: float, seed: int = 4) -> list[Span]:
    """Bursts of 0.3 to 3 s with pauses of 0.2 to 1.5 s, from ``start_s`` to ``end_s``."""
    generator = random.Random(seed)
    spans: list[Span] = []
    while start_s < end_s:
        stop = min(start_s + generator.uniform(0.3, 3.0), end_s)
        spans.append((start_s, stop))
        start_s = stop + generator.uniform(0.2, 1.5)
    return spans


class Load:
    """A process for each GPU that runs matrix products when told to."""

    def __init__(self, gpus: Sequence[int], device: str = "cuda") -> None:
        """Start the processes and wait until they are ready. Raises RuntimeError."""
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._ends: list[Connection] = []
        self._processes = []
        for gpu in gpus:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(device, gpu, theirs, self._stop), daemon=True
            )
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)
        for end in self._ends:
            _answer(end, _START_S)

    def begin(self, spans: Sequence[Span], matrix: int, first: int | None = None) -> float:
        """Let the first GPUs (or all) work in these spans, and the others rest; returns the wall
        clock from which the spans count.

        ``matrix`` is the rows of the square matrices.
        """
        begin = time.time() + 0.5
        self._stop.clear()
        for number, end in enumerate(self._ends):
            works = first is None or number < first
            end.send((begin, list(spans) if works else [], matrix))
        return begin

    def finish(self, timeout_s: float, abort: bool = False) -> list[list[Span]]:
        """Wait for the end of the plan, or break it off; for each GPU, when it really worked (wall
        clock, s). Raises RuntimeError where a process failed or did not answer.
        """
        if abort:
            self._stop.set()
        return [_answer(end, timeout_s) for end in self._ends]

    def close(self) -> None:
        """End the processes."""
        self._stop.set()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _answer(end: Connection, timeout_s: float) -> Any:
    if not end.poll(timeout_s):
        raise RuntimeError(f"a load process has not answered for {timeout_s:.0f} s")
    try:
        kind, value = end.recv()
    except EOFError:
        raise RuntimeError("a load process died; see its message above") from None
    if kind == "error":
        raise RuntimeError(f"a load process failed:\n{value}")
    return value


def _work(device: str, gpu: int, end: Connection, stop: Any) -> None:
    try:
        products = _Products(device, gpu)
        end.send(("done", []))
        while (plan := end.recv()) is not None:
            begin, spans, matrix = plan
            products.prepare(matrix)
            worked = []
            for on, off in spans:
                if _wait_until(begin + on, stop):
                    break
                worked.append(products.run_until(begin + off, stop))
            end.send(("done", worked))
    except EOFError:
        return  # whoever gave the plans is gone
    except Exception:  # handed to the one who asked, with all that is known of it
        end.send(("error", traceback.format_exc()))


class _Products:
    def __init__(self, device: str, gpu: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device, gpu) if device == "cuda" else torch.device(device)
        self._cuda = device == "cuda"
        self._rows = 0
        if self._cuda:
            torch.cuda.set_device(gpu)
            self._events = [torch.cuda.Event() for _ in range(_QUEUED)]
        else:
            torch.set_num_threads(1)
        self.prepare(1024)

    def prepare(self, rows: int) -> None:
        """Make matrices of that size, and run a product so that nothing is loaded later."""
        if rows == self._rows:
            return
        torch = self._torch
        self._rows = rows
        self._matrix = torch.randn(rows, rows, device=self._device, dtype=torch.bfloat16)
        self._output = torch.empty_like(self._matrix)
        torch.mm(self._matrix, self._matrix, out=self._output)
        self._synchronize()

    def run_until(self, end_unix_s: float, stop: Any) -> Span:
        """Products until the time has come; when the first began and the last had ended."""
        torch, number = self._torch, 0
        started = time.time()
        while time.time() < end_unix_s:
            if number % 256 == 255 and stop.is_set():
                break
            if self._cuda:
                event = self._events[number % _QUEUED]
                if number >= _QUEUED:
                    event.synchronize()
            torch.mm(self._matrix, self._matrix, out=self._output)
            if self._cuda:
                event.record()
            number += 1
        self._synchronize()
        return started, time.time()

    def _synchronize(self) -> None:
        if self._cuda:
            self._torch.cuda.synchronize()


def _wait_until(unix_time_s: float, stop: Any) -> bool:
    """Wait, the last millisecond awake; whether the plan was broken off."""
    while (left := unix_time_s - time.time()) > 0.001:
        if left > 0.2:
            if stop.wait(left - 0.2):
                return True
        else:
            time.sleep(left - 0.001)
    while time.time() < unix_time_s:
        pass
    return bool(stop.is_set())
