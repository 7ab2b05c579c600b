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
import gc
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

import torch

from benchmarks.measuring.engine_cells import make_cells
from benchmarks.measuring.engine_steps import train, train_peer
from workflow_lib.records import Cell


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
    conditions = {
        "gpu": torch.cuda.get_device_name(),
        "gpus": launch.world_size,
        "torch": torch.__version__,
        "begun": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
    }

    def show(name: str, found: dict[str, Any]) -> None:
        gc.collect()  # what was trained is unreachable by now
        torch.cuda.empty_cache()
        results.append({**conditions, "cell": name, **found})
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
    if found.get("communication_s"):
        exposed = ", ".join(f"{k} {100 * v:.1f} %" for k, v in found["exposed"].items())
        profiled = (
            f"  communication {found['communication_s']:.3f} s, {100 * found['overlapped']:.0f} % "
            f"beside compute; exposed, of the step: {exposed or 'nothing'}"
        )
    if found.get("mfu_causal_bf16_peak", found["mfu_causal"]) != found["mfu_causal"]:
        profiled += f", causal MFU of the bf16 peak {100 * found['mfu_causal_bf16_peak']:.1f} %"
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
