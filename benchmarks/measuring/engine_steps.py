"""Steps of a cell on this rank's GPU, by our engine or a peer: their time, memory and traces."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from workflow_lib import memory
from workflow_lib.formulas import flops_per_token
from workflow_lib.records import Cell, Training


def measure(step: Callable[[], float], training: Training) -> tuple[float, float]:
    """The median duration of a step in seconds, after the warm-up, and the last loss in nats."""
    times, loss = [], 0.0
    for number in range(training.warmup_steps + training.measured_steps):
        started = time.monotonic()
        loss = step()
        torch.cuda.synchronize()
        if number >= training.warmup_steps:
            times.append(time.monotonic() - started)
    return statistics.median(times), loss


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
    computing = merge(spans.pop("compute"))
    communicating = merge([span for each in spans.values() for span in each])
    total = sum(end - start for start, end in communicating)
    return {
        "communication_s": total,
        "overlapped": both(communicating, computing) / total if total else float("nan"),
        "exposed": {
            name: (sum(end - start for start, end in merge(each)) - both(merge(each), computing))
            / step_s
            for name, each in sorted(spans.items())
        },
    }


def both(spans: list[tuple[float, float]], others: list[tuple[float, float]]) -> float:
    """For how long two lists of disjoint, ordered spans run at once."""
    together, index = 0.0, 0
    for start, end in spans:
        while index < len(others) and others[index][1] <= start:
            index += 1
        for other_start, other_end in others[index:]:
            if other_start >= end:
                break
            together += min(end, other_end) - max(start, other_start)
    return together


def merge(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of spans, as disjoint ones in order."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def train(cell: Cell, device: Any, trace: bool) -> dict[str, Any]:
    """Train a cell for a few steps on every rank; returns its measures."""
    import torch.distributed as dist

    from workflow_lib.training import engines, mesh
    from workflow_lib.training.data import SyntheticTokens, step_batches

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    placed = mesh.create(cell.degrees, device.torch)
    started = time.monotonic()
    engine = engines.create(cell, placed)
    build_s = time.monotonic() - started
    batches = step_batches(SyntheticTokens(cell.model.vocabulary_size), cell, placed, 0)
    engine.train_step(batches)
    torch.cuda.synchronize()
    start_up_s = time.time() - psutil.Process().create_time()
    step_s, loss = measure(lambda: engine.train_step(batches), cell.training)
    peak = torch.tensor(float(torch.cuda.max_memory_allocated() - before), device=device.torch)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    profiled = traced(lambda: engine.train_step(batches)) if trace else {}
    return {
        **rates(cell, step_s),
        "loss": loss,
        "build_s": build_s,
        "start_up_s": start_up_s,
        "peak_gb": peak.item() / 1e9,
        "estimate_gb": memory.estimate(cell.model, cell.degrees, cell.training).allocated / 1e9,
        "left_over_gb": before / 1e9,
        **profiled,
    }


def rates(cell: Cell, step_s: float) -> dict[str, float]:
    """Tokens/s/GPU, MFU by three of the conventions, and the causal one of the bf16 peak, of a step
    that took ``step_s`` seconds.
    """
    tokens = cell.training.global_batch_size * cell.model.sequence_length
    rate = tokens / step_s / cell.degrees.world_size
    counts = flops_per_token(cell.model)
    hardware = cell.hardware
    peak = hardware.peak_flops_per_s(cell.training.precision) or float("nan")
    return {
        "step_s": step_s,
        "tokens_per_s_per_gpu": rate,
        "mfu_6n": rate * counts.six_n / peak,
        "mfu_causal": rate * counts.causal / peak,
        "mfu_causal_bf16_peak": rate
        * counts.causal
        / (hardware.peak_bf16_flops_per_s or float("nan")),
        "mfu_full_attention": rate * counts.full_attention / peak,
    }


def train_peer(cell: Cell, device: Any) -> dict[str, Any]:
    """The same model by transformers, sharded by FSDP2, its layers compiled."""
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    from workflow_lib.training import mesh
    from workflow_lib.training.data import SyntheticTokens, step_batches

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = cell.model
    settings = LlamaConfig(
        vocab_size=model.padded_vocabulary_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.attention_heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=model.sequence_length,
        attn_implementation="sdpa",
        use_cache=False,
    )
    with device.torch:
        network = LlamaForCausalLM(settings).float()
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in network.model.layers:
        layer.compile()
        fully_shard(layer, mp_policy=precision, reshard_after_forward=False)
    fully_shard(network, mp_policy=precision, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    source = SyntheticTokens(model.vocabulary_size)
    batches = step_batches(source, cell, mesh.create(cell.degrees, device.torch), 0)

    def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    loss_of = torch.compile(cross_entropy)

    def step() -> float:
        total = torch.zeros((), device=device.torch)
        for number, (tokens, targets) in enumerate(batches, start=1):
            # As our ZeRO-1: weights stay gathered, and gradients are reduced, once a step.
            network.set_requires_gradient_sync(number == len(batches))
            network.set_reshard_after_backward(number == len(batches))
            loss = loss_of(network(input_ids=tokens).logits, targets) / len(batches)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()

    step_s, loss = measure(step, cell.training)
    peak = torch.cuda.max_memory_allocated() - before
    return {**rates(cell, step_s), "loss": loss, "peak_gb": peak / 1e9}
