"""What a training's operators take of a GPU's time and energy, each alone and again and again.

At the shapes of Llama 3 8B and sequences of 8,192 tokens, on random normal numbers, it times each
operator (a) in a burst of 0.1 s on a GPU that had nothing to do, part by part, before the power cap
lowers the clock; and (b) for seconds, with the energy counter's joules between two of its renewals,
and the clock. So (b) beside (a) is what the cap costs an operator, and (b) alone its joules. The
operators come twice, there and back, because the GPU warms up. About five minutes:

    python3 research/operators_on_gpus.py --output operators.jsonl

With ``--gpus 2`` two ranks exchange instead, at the sizes of layouts of two GPUs, and wait for each
other; each writes rows of its own.

Needs torch and nvidia-ml-py. No setting of a GPU is touched.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
# So that torch's number of a GPU is NVML's.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.measuring.parts import append, launcher
from research.measuring import readings

TOKENS, HIDDEN, FEED_FORWARD, VOCABULARY = 8192, 4096, 14336, 128256
HEADS, KV_HEADS, HEAD_DIMENSION = 32, 8, 128
#: rows, columns, and what is summed over: forward and, last, a gradient of weights
PRODUCTS = (
    (TOKENS, HIDDEN + 2 * KV_HEADS * HEAD_DIMENSION, HIDDEN),
    (TOKENS, HIDDEN, HIDDEN),
    (TOKENS, 2 * FEED_FORWARD, HIDDEN),
    (TOKENS, HIDDEN, FEED_FORWARD),
    (TOKENS, VOCABULARY, HIDDEN),
    (2 * FEED_FORWARD, HIDDEN, TOKENS),
)
_PIECE_S, _BURST_S, _REST_S = 0.005, 0.1, 0.7
#: pieces that wait in the GPU's queue
_QUEUED = 3


class Operator(NamedTuple):
    """One call, and what of it can be counted."""

    name: str
    shape: str
    flop: float
    #: that it has to read and write, if the cache holds nothing
    least_bytes: float
    call: Callable[[], Any]


class Times(NamedTuple):
    """Seconds a call in each piece of some work, and when it began and ended, wall clock."""

    call_s: list[float]
    began_unix_s: float
    ended_unix_s: float


def operators(device: torch.device, shrink: int) -> Iterator[Operator]:
    """Each with its inputs, 10 GB of all together; ``shrink`` divides sizes, for tests."""

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    for m, n, k in (tuple(size // shrink for size in product) for product in PRODUCTS):
        a, b, out = normal(m, k), normal(k, n), normal(m, n)
        work, moved = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
        shape, product = f"{m}×{n}×{k}", partial(torch.mm, a, b, out=out)
        yield Operator("product, bf16", shape, work, moved, product)
        if device.type == "cuda":
            eight, other = (x.to(torch.float8_e4m3fn) for x in (a, b.t().contiguous()))
            one = torch.ones((), device=device)
            product = partial(
                torch._scaled_mm, eight, other.t(), one, one, out_dtype=torch.bfloat16
            )
            yield Operator("product, fp8", shape, work, moved - (m * k + k * n), product)
    n, k = 2 * FEED_FORWARD // shrink, HIDDEN // shrink
    token, weight, out = normal(1, k), normal(k, n), normal(1, n)
    yield Operator(
        *("product, one token", f"1×{n}×{k}", 2.0 * n * k, 2.0 * (n * k + n + k)),
        partial(torch.mm, token, weight, out=out),
    )
    tokens = TOKENS // shrink
    q = normal(1, HEADS, tokens, HEAD_DIMENSION).requires_grad_()
    k_, v = (normal(1, KV_HEADS, tokens, HEAD_DIMENSION).requires_grad_() for _ in range(2))
    # Half of the pairs, as a token sees none after it.
    work = 2.0 * HEADS * HEAD_DIMENSION * tokens**2
    moved = 2.0 * 2 * (q.numel() + k_.numel())

    def attention() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k_, v, is_causal=True, enable_gqa=True)

    yield Operator("attention, forward", f"{tokens} tokens", work, moved, attention)
    seen = attention()
    slopes = torch.randn_like(seen)
    yield Operator(
        *("attention, backward", f"{tokens} tokens", 2.5 * work, 2 * moved),
        lambda: torch.autograd.grad(seen, (q, k_, v), slopes, retain_graph=True),
    )
    sizes = tokens, FEED_FORWARD // shrink
    x, y, z = normal(*sizes), normal(*sizes), normal(*sizes)
    yield Operator(
        *("element-wise, bf16", "×".join(map(str, sizes)), x.numel(), 6.0 * x.numel()),
        lambda: torch.add(x, y, out=z),
    )
    sums = normal(*sizes, dtype=torch.float32)
    yield Operator(
        *("sum of gradients", "×".join(map(str, sizes)), x.numel(), 10.0 * x.numel()),
        lambda: sums.add_(x),
    )
    yield Operator(
        *("copy", "×".join(map(str, sizes)), 0.0, 8.0 * sums.numel()),
        partial(torch.empty_like(sums).copy_, sums),
    )
    weights = [
        normal(HIDDEN // shrink, FEED_FORWARD // shrink, dtype=torch.float32) for _ in "1234"
    ]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    adam = torch.optim.AdamW(weights, fused=True)
    count = sum(weight.numel() for weight in weights)
    # Weights, two moments and the gradient are read, and all but the gradient written.
    yield Operator("AdamW", f"{count} weights", 0.0, 28.0 * count, adam.step)
    if device.type == "cuda":
        waits = partial(torch.cuda._sleep, 1_000_000)
        yield Operator("a kernel that waits", "", 0.0, 0.0, waits)
    yield Operator("nothing", "", 0.0, 0.0, lambda: time.sleep(_PIECE_S))


def exchanges(device: torch.device, shrink: int) -> Iterator[Operator]:
    """Of two ranks: a layer's weights and gradients with ZeRO-3, the hidden states of TP2 and PP2,
    and one rank that waits for the other, in each kind of kernel that waits."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # Numbers stay as they are, however often they are reduced; gloo has no mean.
    mean = dist.ReduceOp.AVG if device.type == "cuda" else dist.ReduceOp.MAX
    layer = sum(n * k for _, n, k in PRODUCTS[:4])
    states = TOKENS * HIDDEN
    for elements, dtype in (
        (layer, torch.bfloat16),
        (layer, torch.float32),
        (states, torch.bfloat16),
    ):
        whole = torch.randn(elements // shrink, device=device, dtype=dtype)
        part = whole[: whole.numel() // ranks].clone()
        moved = float(part.numel() * part.element_size())
        shape = f"{whole.numel() * whole.element_size() / 1e6:.0f} MB, {str(dtype)[6:]}"
        gather = partial(dist.all_gather_into_tensor, whole, part)
        yield Operator("all-gather", shape, 0.0, moved, gather)
        if device.type == "cuda":
            scatter = partial(dist.reduce_scatter_tensor, part, whole, op=mean)
            yield Operator("reduce-scatter", shape, 0.0, moved, scatter)
        yield Operator(
            *("all-reduce", shape, 0.0, 2 * moved), partial(dist.all_reduce, whole, op=mean)
        )
    send = partial(dist.send, whole, 1) if rank == 0 else partial(dist.recv, whole, 0)
    yield Operator("send" if rank == 0 else "receive", shape, 0.0, 2 * moved, send)
    if device.type != "cuda":
        return
    one = torch.ones(1, device=device)
    for name, meet in (
        ("all-reduce", lambda: dist.all_reduce(one, op=mean)),
        ("receive", lambda: dist.recv(one, 1) if rank == 0 else dist.send(one, 0)),
    ):

        def late(meet: Callable[[], Any] = meet) -> None:
            if rank != 0:
                torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
            meet()

        yield Operator(f"{name} that waits" if rank == 0 else f"{name}, late", "", 0.0, 0.0, late)


def agreed(value: float) -> float:
    """The largest of all ranks', so that each makes as many calls."""
    if not dist.is_initialized():
        return value
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    largest = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return float(largest)


class Meter:
    """A GPU's energy counter, clock and temperature, while it works."""

    def __init__(self, gpu: int) -> None:
        self.nvml, handles = readings.open_handles()
        self.handle = handles[gpu]

    def what(self) -> dict[str, Any]:
        """The GPU, its driver and its limit."""
        nvml, handle = self.nvml, self.handle
        return {
            "uuid": nvml.nvmlDeviceGetUUID(handle),
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "sm_clock_max_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        }

    def during(self, work: Callable[[], Times]) -> tuple[Times, dict[str, Any]]:
        """The times of some work, and power, clock and temperature in it. Raises NVML's errors."""
        stop = Event()
        with ThreadPoolExecutor(2) as pool:
            changes = pool.submit(
                readings.changes_of, self.nvml, readings.ENERGY, self.handle, stop
            )
            clocks = pool.submit(self._clocks, stop)
            try:
                times = work()
            finally:
                stop.set()
        clocks_mhz, temperatures_c = zip(*clocks.result(), strict=True)
        return times, {
            "power_w": mean_power_w(changes.result(), times.began_unix_s, times.ended_unix_s),
            "sm_clock_mhz": statistics.fmean(clocks_mhz),
            "temperature_c": [temperatures_c[0], temperatures_c[-1]],
        }

    def _clocks(self, stop: Event) -> list[tuple[int, int]]:
        nvml, handle = self.nvml, self.handle
        seen: list[tuple[int, int]] = []
        while not seen or not stop.wait(0.05):
            clock_mhz = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
            warm_c = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            seen.append((clock_mhz, warm_c))
        return seen


def mean_power_w(renewals: Sequence[tuple[float, float]], start: float, end: float) -> float | None:
    """By the first and the last renewal of a counter in J within a span; None where they are less
    than half of it apart."""
    within = [renewal for renewal in renewals if start <= renewal[0] <= end]
    if not within or within[-1][0] - within[0][0] < (end - start) / 2:
        return None
    return (within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0])


class Clocked:
    """Runs calls of one operator, and tells when the GPU, or the CPU, had done them."""

    def __init__(self, operator: Operator, device: torch.device) -> None:
        self.call = operator.call
        self.on_gpu = device.type == "cuda" and operator.name != "nothing"
        self._run(3)
        calls = 3
        while (took_s := self._run(calls)) < _PIECE_S and calls < 10_000:
            calls *= 2
        call_s = max(took_s, 1e-9) / calls
        #: calls that take a piece's time, and that time
        self.piece = max(1, round(_PIECE_S / call_s))
        self.piece_s = self.piece * call_s

    def _run(self, calls: int) -> float:
        began = time.monotonic()
        for _ in range(calls):
            self.call()
        if self.on_gpu:
            torch.cuda.synchronize()
        return agreed(time.monotonic() - began)

    def times(self, seconds: float) -> Times:
        """Of calls for about so many seconds."""
        marks: list[Any] = []

        def mark() -> None:
            if self.on_gpu:
                marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
                marks[-1].record()
            else:
                marks.append(time.monotonic())

        began = time.time()
        mark()
        for _ in range(math.ceil(seconds / self.piece_s)):
            for _ in range(self.piece):
                self.call()
            mark()
            if self.on_gpu and len(marks) > _QUEUED:
                marks[-_QUEUED].synchronize()
        if self.on_gpu:
            torch.cuda.synchronize()
        ended = time.time()
        pieces = (a.elapsed_time(b) / 1e3 if self.on_gpu else b - a for a, b in pairwise(marks))
        return Times([piece / self.piece for piece in pieces], began, ended)


def measure(
    operator: Operator, device: torch.device, seconds: float, meter: Meter | None
) -> dict[str, Any]:
    """One operator's row."""
    clocked = Clocked(operator, device)
    time.sleep(_REST_S)
    burst = clocked.times(min(_BURST_S, seconds))
    clocked.times(seconds / 4)
    work = partial(clocked.times, seconds)
    steady, seen = meter.during(work) if meter else (work(), {"power_w": None})
    row: dict[str, Any] = {
        **{name: getattr(operator, name) for name in ("name", "shape", "flop", "least_bytes")},
        **{"burst_call_s": burst.call_s, "calls": len(steady.call_s) * clocked.piece},
        "call_s": statistics.fmean(steady.call_s),
        **seen,
    }
    row["call_j"] = None if row["power_w"] is None else row["power_w"] * row["call_s"]
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure them all, twice; returns 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each (default: 5)")
    parser.add_argument("--output", type=Path, help="append each row to this file of JSON lines")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu for tests")
    parser.add_argument("--shrink", type=int, default=1, help="divides sizes, for tests")
    parser.add_argument(
        "--gpus", type=int, choices=(1, 2), default=1, help="2 exchange and wait (default: 1)"
    )
    parser.add_argument("--only", default="", help="operators of one GPU whose name contains this")
    options = parser.parse_args(arguments)
    if options.only and options.gpus > 1:
        parser.error(
            "--only is for one GPU: names of two ranks differ, and one would wait for ever"
        )
    if options.device == "cuda" and torch.cuda.device_count() < options.gpus:
        print(
            f"operators_on_gpus: torch sees {torch.cuda.device_count()} CUDA GPUs; run it on a "
            "machine with enough (skipped)"
        )
        return 0
    if options.gpus == 1:
        measure_all(options, operators, 0)
        return 0
    if "RANK" not in os.environ:
        return subprocess.run(launcher(options.gpus)).returncode
    rank = int(os.environ["RANK"])
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    measure_all(options, exchanges, rank)
    dist.destroy_process_group()
    return 0


def measure_all(
    options: argparse.Namespace,
    make: Callable[[torch.device, int], Iterator[Operator]],
    rank: int,
) -> None:
    """All operators, there and back; each row is printed and kept."""
    device = torch.device("cuda", rank) if options.device == "cuda" else torch.device("cpu")
    torch.manual_seed(1)
    meter = Meter(rank) if options.device == "cuda" else None
    name = torch.cuda.get_device_name() if meter else "CPU"
    conditions = {"gpu": name, "torch": torch.__version__, **(meter.what() if meter else {})}
    if options.gpus > 1:
        conditions["rank"] = rank
    heads = ("burst µs", 9), ("call µs", 9), ("W", 6), ("MHz", 6), ("mJ", 8)
    told = " ".join(head.rjust(width) for head, width in heads)
    print(f"{'operator':22} {'shape':>20} {told}")
    for turn in range(2):
        made = (each for each in make(device, options.shrink) if options.only in each.name)
        for operator in made if turn == 0 else reversed([*made]):
            row = measure(operator, device, options.seconds, meter)
            append(options.output, {**conditions, "turn": turn, "unix_time_s": time.time(), **row})
            print(line(row), flush=True)


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    fields = (
        (1e6 * min(row["burst_call_s"]), 9, 1),
        (1e6 * row["call_s"], 9, 1),
        (row["power_w"], 6, 0),
        (row.get("sm_clock_mhz"), 6, 0),
        (None if row["call_j"] is None else 1e3 * row["call_j"], 8, 2),
    )
    told = (
        f"{'–':>{width}}" if value is None else f"{value:>{width},.{digits}f}"
        for value, width, digits in fields
    )
    return f"{row['name']:22} {row['shape']:>20} {' '.join(told)}"


if __name__ == "__main__":
    sys.exit(main())
