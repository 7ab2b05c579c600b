r"""How fast the engine trains on this machine's GPUs, and how much memory it takes.

Trains sets of cells on all GPUs, each for a few steps, and prints a line a cell: tokens/s/GPU, MFU
by the three conventions, and the peak memory of the fullest GPU beside the planner's estimate of
it. The sets are whole models (llama3-8b) and full-width models with few layers (the twins of the
study's). Needs torch and what envs/training.txt lists:

    python3 research/engine_on_gpus.py --platform h200 --sets llama3-8b twins

With ``--trace`` one more step is profiled, and the line says how long the communication kernels of
the first rank took, beside which share of them compute kernels ran, and for which share of the step
each collective ran alone.

With ``--alternations`` every cell has several launches, in rounds such as these:

    python3 research/engine_on_gpus.py --sets experts --layers 4 --trace --alternations 3

With ``--ranks-per-gpu 4`` the layouts of four GPUs train on one. Loss and memory are recorded as
ever; speeds are not, because the ranks share the GPU. That needs NCCL 2.30 or later. Start CUDA's
Multi-Process Service first, or the ranks take turns on the GPU:

    nvidia-cuda-mps-control -d
    NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=2 python3 research/engine_on_gpus.py \
        --sets twins pipelines --ranks-per-gpu 4 --layers 4
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

import torch

from benchmarks.measuring.pairs import NEW_TOKENS, OURS, in_rounds
from benchmarks.measuring.parts import append, launcher
from research.measuring.engine_cells import CONFIG, make_cells, option_sets, say
from research.measuring.engine_steps import SPEEDS, train
from workflow_lib import memory
from workflow_lib.records.cell import Cell


def on_every_rank(options: argparse.Namespace) -> None:
    """Runs in each rank of the launch: trains the cells in turn; the first rank prints."""
    import torch.distributed as dist

    from workflow_lib.trainers.native import device as devices
    from workflow_lib.trainers.native.launch import detect

    launch = detect()
    cells = chosen_cells(options, launch.world_size)
    launch = dataclasses.replace(
        launch,
        local_rank=launch.local_rank // options.ranks_per_gpu,
        local_world_size=launch.local_world_size // options.ranks_per_gpu,
    )
    device = devices.choose(launch, cells[0].hardware, cells[0].telemetry)
    os.environ["LOCAL_RANK"] = str(launch.local_rank)
    dist.init_process_group("nccl", device_id=device.torch)
    conditions = {
        "gpu": torch.cuda.get_device_name(),
        "gpus": launch.world_size // options.ranks_per_gpu,
        "ranks_per_gpu": options.ranks_per_gpu,
        "torch": torch.__version__,
        "begun": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "steps": options.steps,
        "tokens": NEW_TOKENS,
    }
    who = {"by": OURS} | ({"round": options.round} if options.round else {})

    def show(name: str, found: dict[str, Any]) -> None:
        gc.collect()  # what was trained is unreachable by now
        torch.cuda.empty_cache()
        record = {**conditions, "cell": name, **who, **found}
        if launch.rank == 0:
            print(line(name, found), flush=True)
            append(options.output, record)

    for cell in cells:
        try:
            found = train(cell, device, options.trace)
            shared = options.ranks_per_gpu > 1
            show(cell.id, without_speeds(found, options.ranks_per_gpu) if shared else found)
        except torch.OutOfMemoryError as error:
            # The other ranks may wait for this one for ever.
            print(f"{cell.id}: out of memory: {str(error)[:200]}", flush=True)
            os._exit(1)
    dist.destroy_process_group()


def chosen_cells(options: argparse.Namespace, gpus: int) -> list[Cell]:
    """The cells of the chosen sets whose id contains what --only says."""
    cells = [cell for cell in make_cells(options, gpus) if options.only in cell.id]
    if options.ranks_per_gpu > 1:
        there = torch.cuda.get_device_properties(0).total_memory
        return [cell for cell in cells if fits_shared(cell, options.ranks_per_gpu, there)]
    return cells


def fits_shared(cell: Cell, ranks: int, there: int) -> bool:
    """Whether a GPU of so many bytes has memory for that many ranks of a cell, by the planner; the
    launching process says if not.
    """
    needed = ranks * memory.estimate(cell.model, cell.degrees, cell.training).allocated
    fits = needed <= 0.9 * there  # contexts and buffers of communication take some
    if not fits:
        say(f"{cell.id}: {ranks} ranks need {needed / 1e9:.0f} of {there / 1e9:.0f} GB (skipped)")
    return fits


def without_speeds(found: dict[str, Any], ranks_per_gpu: int) -> dict[str, Any]:
    """What was measured of ranks that share GPUs: their speeds are null, with the reason."""
    speeds = dict.fromkeys(key for key in found if key in SPEEDS)
    return {**found, **speeds, "speeds_missing": f"{ranks_per_gpu} ranks share each GPU"}


def line(name: str, found: dict[str, Any]) -> str:
    """One line of the table; a dash for what was not measured."""

    shown = [
        f"{scale * found[key]:{width}.{digits}f}"
        if found.get(key) is not None
        else "–".rjust(width)
        for key, width, digits, scale in _COLUMNS
    ]
    told = [*shown, f" {name}  loss {found['loss']:.3f}"]
    if found.get("start_up_s") is not None:  # of the launcher's child, imports included
        told[-1] += f", first step after {found['start_up_s']:.0f} s"
    if found.get("communication_s"):
        exposed = ", ".join(f"{k} {100 * v:.1f} %" for k, v in found["exposed"].items())
        told[-1] += (
            f"  communication {found['communication_s']:.3f} s, {100 * found['overlapped']:.0f} % "
            f"beside compute; exposed, of the step: {exposed or 'nothing'}"
        )
    if found.get("mfu_causal_bf16_peak", found["mfu_causal"]) != found["mfu_causal"]:
        told[-1] += f", causal MFU of the bf16 peak {100 * found['mfu_causal_bf16_peak']:.1f} %"
    return " ".join(told)


#: measures of the table: their width, digits behind the point and scale
_COLUMNS = (
    *(("tokens_per_s_per_gpu", 12, 0, 1), ("mfu_6n", 6, 1, 100), ("mfu_causal", 6, 1, 100)),
    *(("mfu_full_attention", 5, 1, 100), ("peak_gb", 7, 1, 1), ("estimate_gb", 8, 1, 1)),
    ("step_s", 8, 3, 1),
)


def main() -> int:
    """Launch a process a GPU for each cell and wait for them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    platforms = sorted(path.stem for path in (CONFIG / "platforms").glob("*.yaml"))
    sets = option_sets(1)
    shown = f"sets of cells: {', '.join(sets)}"
    add("--platform", choices=platforms, metavar="PLATFORM", default="h200", help="(default: h200)")
    usual = ["llama3-8b-8l"]
    add("--sets", nargs="+", choices=sorted(sets), metavar="SET", default=usual, help=shown)
    add("--only", default="", help="only cells whose id contains this")
    add("--gpus", type=int, help="how many (default: all)")
    for name, most, default, what in (
        ("--ranks-per-gpu", 16, 1, "more than one tells no speeds (default: 1)"),
        ("--layers", 999, None, "of every model (default: as the set says)"),
        ("--alternations", 99, 1, "launches of each (default: 1)"),
    ):
        add(name, type=int, choices=range(1, most + 1), metavar="N", default=default, help=what)
    add("--round", help=argparse.SUPPRESS)
    add("--trace", action="store_true", help="profile a step of each cell")
    add("--steps", type=int, default=3, help="measured steps (default: 3)")
    add("--warmup", type=int, default=2, help="steps before (default: 2)")
    add("--output", type=Path, help="append each result to this file as JSON")
    options = parser.parse_args()
    if options.ranks_per_gpu > 1 and options.trace:
        parser.error("--trace measures time, which ranks that share a GPU do not show")
    if "RANK" in os.environ:
        on_every_rank(options)
        return 0
    gpus = options.gpus or torch.cuda.device_count()
    if gpus == 0:
        print("engine_on_gpus: torch sees no CUDA GPU; run it on a machine with one (skipped)")
        return 0
    ranks = gpus * options.ranks_per_gpu
    shared = f", {options.ranks_per_gpu} ranks on each: no speeds" if ranks > gpus else ""
    print(f"{torch.cuda.get_device_name()} × {gpus}, torch {torch.__version__}{shared}")
    print(f"{'tokens/s/GPU':>12} MFU 6N causal  full peak GB estimate   s/step", flush=True)
    command = launcher(ranks)
    # A launch each, as in the workflow: no cell sees what another has left in memory.
    names = [cell.id for cell in chosen_cells(options, ranks)]
    # With its time, as later rounds may be appended to the same file.
    begun = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    codes = [
        subprocess.run(
            [*command, "--only", name, "--round", f"{begun}/{place // len(names) + 1}"]
        ).returncode
        for place, name in enumerate(in_rounds(names, options.alternations))
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
