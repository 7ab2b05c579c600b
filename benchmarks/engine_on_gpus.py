"""How fast the engine trains on this machine's GPUs, and how much memory it takes.

Trains sets of cells on all GPUs, each for a few steps, and prints a line a cell: tokens/s/GPU, MFU
by the three conventions, and the peak memory of the fullest GPU beside the planner's estimate of
it. The sets are whole models (llama3-8b), full-width models with few layers (the twins of the
study's), and cells on both sides of a GPU's memory. Needs torch and what envs/training.txt lists:

    python3 benchmarks/engine_on_gpus.py --platform h200 --sets llama3-8b twins
    python3 benchmarks/engine_on_gpus.py --sets llama3-8b --peer

With ``--trace`` one more step is profiled, and the line says how long the communication kernels of
the first rank took, beside which share of them compute kernels ran, and for which share of the step
each collective ran alone.

With ``--peer``, Hugging Face transformers' Llama with FSDP2 and torch.compile trains the same
model on the same GPUs, before and after, and the ratio is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

import psutil
import torch

from workflow_lib import memory
from workflow_lib.formulas import flops_per_token
from workflow_lib.records import Cell, Data, Degrees, Model, Telemetry, Training
from workflow_lib.study import load_study
from workflow_lib.training import capabilities


def option_sets(gpus: int) -> dict[str, list[tuple[str, int, dict[str, int], dict[str, Any]]]]:
    """The cells by set: model, its layers (0: all), degrees, training options."""
    half = gpus // 2
    layouts = {
        "tensor": {"tp": gpus},
        "tensor and pipeline": {"tp": half, "pp": 2},
        "pipeline": {"pp": gpus},
        "sharded": {"dp": gpus},
    }
    dense = [
        (layouts["tensor"], {"recomputation": "full"}),
        (layouts["tensor"], {"recomputation": "none", "backend": "torch", "overlap": True}),
        (layouts["tensor and pipeline"], {"recomputation": "full"}),
        (layouts["pipeline"], {"recomputation": "full"}),
        (layouts["pipeline"], {"recomputation": "full", "backend": "torch", "overlap": True}),
        (layouts["sharded"], {"recomputation": "full", "zero_stage": 3}),
        (layouts["sharded"], {"recomputation": "full", "zero_stage": 3, "backend": "torch"}),
    ]
    experts = [
        ({"dp": gpus, "ep": gpus}, {"recomputation": "full", "routing": "balanced"}),
        ({"dp": gpus, "ep": gpus}, {"recomputation": "full", "backend": "torch"}),
        ({"tp": 2, "dp": half, "ep": half}, {"recomputation": "full", "routing": "balanced"}),
        ({"dp": half, "pp": 2, "ep": half}, {"recomputation": "full", "routing": "balanced"}),
        ({"tp": gpus}, {"recomputation": "full", "routing": "balanced"}),
    ]
    best = {"backend": "torch", "compile": True, "overlap": gpus > 1, "recomputation": "none"}
    whole = [
        ({"dp": gpus}, {**best}),
        ({"dp": gpus}, {"zero_stage": 3, **best}),
        ({"dp": gpus}, {"zero_stage": 2, **best}),
        ({"dp": gpus}, {"zero_stage": 3, **best, "micro_batch_size": 2}),
        ({"dp": gpus}, {"zero_stage": 3, **best, "compile": False}),
        ({"dp": gpus}, {"zero_stage": 2, "overlap": gpus > 1, "recomputation": "none"}),
    ]
    sets: dict[str, list[tuple[str, int, dict[str, int], dict[str, Any]]]] = {
        "llama3-8b": [("llama3-8b", 0, *one) for one in whole],
        "llama3-8b-8l": [("llama3-8b", 8, *one) for one in whole],
        "gpt3-175b": [("gpt3-175b", 8, *one) for one in dense],
        "llama3-70b": [("llama3-70b", 8, *one) for one in dense],
        "mixtral-8x7b": [("mixtral-8x7b", 8, *one) for one in experts],
        "mixtral-8x22b": [("mixtral-8x22b", 8, *one) for one in experts],
    }
    pairs = [
        ({"dp": gpus}, {"zero_stage": 3, "backend": "torch"}),
        ({"dp": gpus}, {"zero_stage": 1, "backend": "torch"}),
        ({"dp": gpus}, {"zero_stage": 3}),
        ({"tp": gpus}, {"backend": "torch"}),
        ({"pp": gpus}, {"backend": "torch"}),
        ({"pp": half, "dp": 2, "virtual_stages": 2}, {"backend": "torch"}),
    ]
    sets["overlap"] = [
        ("llama3-8b", 8, degrees, {**options, "overlap": overlap})
        for degrees, options in pairs
        for overlap in (False, True)
    ]
    # About as much as an H200 has, and more.
    sets["limits"] = [
        ("llama3-70b", 28, layouts["tensor"], {"recomputation": "full"}),
        ("llama3-70b", 34, layouts["tensor"], {"recomputation": "full"}),
        ("llama3-8b", 0, layouts["sharded"], {"backend": "torch", "micro_batch_size": 2}),
    ]
    sets["exposed"] = [
        (name, 8, degrees, {**options, "backend": "torch", "overlap": overlap})
        for name, of_kind in (
            ("gpt3-175b", dense),
            ("llama3-70b", dense),
            ("mixtral-8x7b", experts),
            ("mixtral-8x22b", experts),
        )
        for degrees, options in of_kind
        if "backend" not in options
        for overlap in (False, True)
    ]
    sets["twins"] = [
        one
        for name in ("gpt3-175b", "llama3-70b", "mixtral-8x7b", "mixtral-8x22b")
        for one in sets[name]
    ]
    return sets


def make_cells(options_given: argparse.Namespace, gpus: int) -> Iterator[Cell]:
    """The cells of the sets on ``gpus`` GPUs; those that no backend can run are left out aloud."""
    from workflow_lib.cells import _hardware  # the one place that turns a platform into hardware

    study, platform = load_study(REPOSITORY / "config"), options_given.platform
    for name in options_given.sets:
        for model_name, layers, degrees, options in option_sets(gpus)[name]:
            model: Model = study.models[model_name].record(model_name)
            model = dataclasses.replace(model, layers=layers or model.layers)
            degree = Degrees(**degrees)
            plain: dict[str, Any] = {
                "zero_stage": 1,
                "micro_batch_size": 1,
                "global_batch_size": 4 * gpus,
                "precision": "bf16",
                "recomputation": "none",
                "overlap": False,
                "warmup_steps": options_given.warmup,
                "measured_steps": options_given.steps,
                "learning_rate": 1e-4,
                "seed": 1,
                "sequence_parallel": degree.tp > 1,
                "routing": "dropless" if model.experts else None,
            }
            training = Training(**{**plain, **options})
            if reason := capabilities.refusal(degree, training, model):
                if "RANK" not in os.environ:
                    print(f"{model.name} {degree.name} {training.name}: {reason}")
                continue
            yield Cell(
                id=f"{platform}/{model.name}-{model.layers}l/{degree.name}_{training.name}_0",
                model=model,
                degrees=degree,
                training=training,
                data=Data("synthetic", "synthetic"),
                hardware=_hardware(platform, study.platforms[platform]),
                telemetry=Telemetry("nvidia", 10.0, 0.0),
                nodes=1,
                software={},
            )


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
    """Tokens/s/GPU and MFU by the three conventions, of a step that took ``step_s`` seconds."""
    tokens = cell.training.global_batch_size * cell.model.sequence_length
    rate = tokens / step_s / cell.degrees.world_size
    counts = flops_per_token(cell.model)
    peak = cell.hardware.peak_flops_per_s(cell.training.precision) or float("nan")
    return {
        "step_s": step_s,
        "tokens_per_s_per_gpu": rate,
        "mfu_6n": rate * counts.six_n / peak,
        "mfu_causal": rate * counts.causal / peak,
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


def on_every_rank(options: argparse.Namespace) -> None:
    """Runs in each rank of the launch: trains the cells in turn; the first rank prints."""
    import torch.distributed as dist

    from workflow_lib.training import device as devices
    from workflow_lib.training.launch import detect

    launch = detect()
    cells = chosen_cells(options, launch.world_size)
    device = devices.choose(launch, cells[0].hardware, cells[0].telemetry)
    os.environ["LOCAL_RANK"] = str(launch.local_rank)
    dist.init_process_group("nccl", device_id=device.torch)
    results: list[dict[str, Any]] = []

    def show(name: str, found: dict[str, Any]) -> None:
        gc.collect()  # what was trained is unreachable by now
        torch.cuda.empty_cache()
        results.append({"cell": name, **found})
        if launch.rank == 0:
            print(line(name, found), flush=True)
            if options.output:
                with options.output.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(results[-1]) + "\n")

    if options.peer:
        show("peer, before", train_peer(cells[0], device))
    for cell in cells:
        try:
            show(cell.id, train(cell, device, options.trace))
        except torch.OutOfMemoryError as error:
            # The other ranks may wait for this one for ever.
            print(f"{cell.id}: out of memory: {str(error)[:200]}", flush=True)
            os._exit(1)
    if options.peer:
        show("peer, after", train_peer(cells[0], device))
        ours = max(r["tokens_per_s_per_gpu"] for r in results if "peer" not in r["cell"])
        theirs = max(r["tokens_per_s_per_gpu"] for r in results if "peer" in r["cell"])
        if launch.rank == 0:
            print(f"ratio to transformers with FSDP2 and torch.compile: {ours / theirs:.3f}")
    dist.destroy_process_group()


def chosen_cells(options: argparse.Namespace, gpus: int) -> list[Cell]:
    """The cells of the chosen sets whose id contains what --only says."""
    cells = make_cells(options, gpus)
    return [cell for cell in cells if options.only in cell.id]


def line(name: str, found: dict[str, Any]) -> str:
    """One line of the table."""
    estimate = found.get("estimate_gb")
    # of the launcher's child, imports and building included
    started = f", first step after {found['start_up_s']:.0f} s" if "start_up_s" in found else ""
    profiled = ""
    if "communication_s" in found:
        exposed = ", ".join(f"{k} {100 * v:.1f} %" for k, v in found["exposed"].items())
        profiled = (
            f"  communication {found['communication_s']:.3f} s, {100 * found['overlapped']:.0f} % "
            f"beside compute; exposed, of the step: {exposed or 'nothing'}"
        )
    shown = f"{estimate:8.1f}" if estimate else "       –"
    return (
        f"{found['tokens_per_s_per_gpu']:12.0f} {100 * found['mfu_6n']:6.1f}"
        f" {100 * found['mfu_causal']:6.1f} {100 * found['mfu_full_attention']:5.1f}"
        f" {found['peak_gb']:7.1f} {shown} {found['step_s']:8.3f}  {name}"
        f"  loss {found['loss']:.3f}{started}{profiled}"
    )


def main() -> int:
    """Launch a process a GPU for each cell and wait for them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--platform", default="h200", help="whose peak counts (default: h200)")
    parser.add_argument("--sets", nargs="+", default=["llama3-8b-8l"], help="sets of cells")
    parser.add_argument("--only", default="", help="only cells whose id contains this")
    parser.add_argument("--gpus", type=int, help="how many (default: all)")
    parser.add_argument("--peer", action="store_true", help="train transformers' Llama as well")
    parser.add_argument("--trace", action="store_true", help="profile a step of each cell")
    parser.add_argument("--together", action="store_true", help="train all cells in one launch")
    parser.add_argument("--steps", type=int, default=3, help="measured steps (default: 3)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before (default: 2)")
    parser.add_argument("--output", type=Path, help="append each result to this file as JSON")
    options = parser.parse_args()
    if "RANK" in os.environ:
        on_every_rank(options)
        return 0
    gpus = options.gpus or torch.cuda.device_count()
    if gpus == 0:
        print("engine_on_gpus: torch sees no CUDA GPU; run it on a machine with one (skipped)")
        return 0
    print(f"{torch.cuda.get_device_name()} × {gpus}, torch {torch.__version__}")
    print(f"{'tokens/s/GPU':>12} MFU 6N causal  full peak GB estimate   s/step", flush=True)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
    command = [sys.executable, *launcher, __file__, *sys.argv[1:]]
    if options.peer or options.together:  # so that both find the same machine, or to save time
        return subprocess.run(command).returncode
    # A launch each, as in the workflow: no cell sees what another has left in memory.
    codes = [
        subprocess.run([*command, "--only", cell.id]).returncode
        for cell in chosen_cells(options, gpus)
    ]
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
