"""Steps of a cell on this rank's GPU by our engine: their time, memory and traces."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
import torch.distributed as dist

from research.measuring import tokens
from workflow_lib import memory
from workflow_lib.formulas import flops_per_token, parameters
from workflow_lib.records.cell import Cell

#: the measures that only ranks with a GPU of their own can have: times and what follows from them
SPEEDS = (
    *("step_s", "tokens_per_s_per_gpu", "mfu_6n", "mfu_causal", "mfu_causal_bf16_peak"),
    *("mfu_full_attention", "build_s", "start_up_s"),
)


def traced(step: Callable[[], float]) -> dict[str, Any]:
    """Profile a step on this rank. Returns seconds of communication kernels, the share of them
    beside which compute kernels ran, and by collective the share of the step in which its kernels
    ran and no compute did.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        started = time.monotonic()
        step()
        torch.cuda.synchronize()
        step_s = time.monotonic() - started
    spans: dict[str, list[tuple[float, float]]] = {"compute": []}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            # NCCL's kernels are called ncclDevKernel_AllGather_RING_LL and the like.
            name = event.name.partition("ncclDevKernel_")[2].partition("_")[0].partition("(")[0]
            spans.setdefault(name or "compute", []).append(
                (event.time_range.start / 1e6, event.time_range.end / 1e6)
            )
    computing = spans.pop("compute")
    of_compute = covered(computing)
    communicating = [span for each in spans.values() for span in each]
    total = covered(communicating)
    alone = covered([*communicating, *computing]) - of_compute
    return {
        "communication_s": total,
        "overlapped": 1 - alone / total if total else float("nan"),
        "exposed": {
            name: (covered([*each, *computing]) - of_compute) / step_s
            for name, each in sorted(spans.items())
        },
    }


def covered(spans: list[tuple[float, float]]) -> float:
    """For how long at least one of the spans runs."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def train(cell: Cell, device: Any, trace: bool) -> dict[str, Any]:
    """Train a cell for a few steps on every rank; returns its measures."""
    from workflow_lib.trainers import engines
    from workflow_lib.trainers.native import mesh

    before = _begin()
    placed = mesh.create(cell.degrees, device.torch)
    started = time.monotonic()
    engine = engines.create(cell, placed)
    build_s = time.monotonic() - started
    batches = iter(tokens.on_device(cell, placed))

    def step() -> float:
        return engine.train_step(next(batches))

    found = _measured(cell, device, step, before)
    profiled = traced(step) if trace else {}
    return {
        **found,
        "build_s": build_s,
        "estimate_gb": memory.estimate(cell.model, cell.degrees, cell.training).allocated / 1e9,
        "left_over_gb": before / 1e9,
        "parameters": our_parameters(cell),
        # Of each stage, first to last, in layers of the model.
        "stage_layers": list(cell.degrees.layers_of_stages(cell.model.layers)),
        **profiled,
    }


def our_parameters(cell: Cell) -> int:
    """How many parameters our model of a cell has, with the rows that pad its vocabulary."""
    return parameters(cell.model, cell.model.padded_vocabulary_size).total


def _begin() -> int:
    """Bytes that are allocated before a cell is built; its peak counts from here."""
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _measured(cell: Cell, device: Any, step: Callable[[], float], before: int) -> dict[str, Any]:
    """Speed, loss, time to the first step's end and peak memory of the fullest GPU."""
    step()
    torch.cuda.synchronize()
    start_up_s = time.time() - psutil.Process().create_time()
    times, loss = [], 0.0
    for _ in range(cell.training.warmup_steps + cell.training.measured_steps):
        started = time.monotonic()
        loss = step()
        torch.cuda.synchronize()
        times.append(time.monotonic() - started)
    step_s = statistics.median(times[cell.training.warmup_steps :])
    highest = torch.tensor(
        [torch.cuda.max_memory_allocated() - before, loss], dtype=torch.float64, device=device.torch
    )
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    peak, loss = highest.tolist()
    return {**rates(cell, step_s), "loss": loss, "start_up_s": start_up_s, "peak_gb": peak / 1e9}


def rates(cell: Cell, step_s: float) -> dict[str, float]:
    """Tokens/s/GPU, MFU by three of the conventions, and the causal one of the bf16 peak, of a step
    that took ``step_s`` seconds.
    """
    tokens = cell.training.global_batch_size * cell.model.sequence_length
    rate = tokens / step_s / cell.degrees.world_size
    counts = flops_per_token(cell.model)
    hardware = cell.hardware
    peak = hardware.peak_flops_per_s(cell.training.precision) or float("nan")
    bf16_peak = hardware.peak_bf16_flops_per_s or float("nan")
    return {
        "step_s": step_s,
        "tokens_per_s_per_gpu": rate,
        "mfu_6n": rate * counts.six_n / peak,
        "mfu_causal": rate * counts.causal / peak,
        "mfu_causal_bf16_peak": rate * counts.causal / bf16_peak,
        "mfu_full_attention": rate * counts.full_attention / peak,
    }
