r"""How long exchanges and the optimiser's step take on this machine's GPUs, each alone.

On all GPUs of one host it times (a) the collectives that the engine uses, in bf16, on messages of
1 MiB to 1 GiB, in groups of 2, 4, … GPUs; all groups of a size exchange at once. And (b) the
clipping of gradients and the optimiser's step, by the engine's own code, over 2^24 to 2^30 weights
a GPU. Projections of this workflow's stack are fitted to such records. Under a minute:

    python3 research/parts_on_gpus.py --output evidence/engine/parts-two-h200-2026-11-24.jsonl

Each line of the table is a median over repeats with the shortest and the longest, each on the
slowest rank. GB/s are of the bytes that a rank receives: of an all-reduce over n ranks 2(n − 1)/n
of the message, of a gather, a scatter or an all-to-all (n − 1)/n, of a send all of it. For the
optimiser they are 26 bytes a weight, as workflow_lib/projection/step_terms.py counts them. Needs
torch and numpy.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

import torch

from benchmarks.measuring.parts import append, launcher

_TIMEOUT = datetime.timedelta(seconds=120)
#: powers of 4 from 1 MiB to 1 GiB
MESSAGES_BYTES = [2**power for power in range(20, 31, 2)]
WEIGHTS = [2**power for power in range(24, 31, 2)]


def on_every_rank(options: argparse.Namespace) -> None:
    """Runs in each rank of the launch; the first rank prints and writes."""
    import torch.distributed as dist

    from research.measuring import part_steps

    rank = int(os.environ["RANK"])
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=_TIMEOUT)
    else:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=_TIMEOUT)
    counts = options.repeats, options.warmups
    conditions = _conditions(options, dist.get_world_size())
    for record in chain(
        part_steps.collectives(device, options.messages, *counts),
        part_steps.optimiser(device, options.weights, *counts),
    ):
        if rank == 0:
            print(line(record), flush=True)
            append(options.output, {**conditions, **record})
    dist.destroy_process_group()


def _conditions(options: argparse.Namespace, ranks: int) -> dict[str, Any]:
    """What holds of all records of a launch."""
    on_gpus = options.device == "cuda"
    return {
        "gpu": torch.cuda.get_device_name() if on_gpus else "CPU",
        "gpus": ranks,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpus else None,
        "nccl_environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")
        },
        "begun": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ"),
    }


def line(record: dict[str, Any]) -> str:
    """One line of the table for each series of repeats of a record."""
    return "\n".join(
        f"{name:<16} {ranks:>5} {size:>9} {1e3 * statistics.median(times):>10.4f} "
        f"{1e3 * min(times):>9.4f} {1e3 * max(times):>9.4f} {rate:>8}"
        for name, ranks, size, times, rate in _series(record)
    )


def _series(record: dict[str, Any]) -> Iterator[tuple[str, str, str, list[float], str]]:
    if record["part"] == "collective":
        times = record["repeats_s"]
        rate = record["received_bytes"] / statistics.median(times) / 1e9
        size = f"{record['message_bytes'] / 2**20:g} MiB"
        yield record["collective"], str(record["ranks"]), size, times, f"{rate:.1f}"
        return
    size = f"{record['parameters'] / 1e6:.4g} M"
    rate = record["bytes"] / statistics.median(record["step_s"]) / 1e9
    yield "clipping", "1", size, record["clip_s"], "–"
    yield "optimiser step", "1", size, record["step_s"], f"{rate:.0f}"


def main() -> int:
    """Launch a process a GPU and wait for them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--gpus", type=int, help="how many (default: all; on the CPU 2 ranks)")
    add(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu tells no GPU's times (tests)"
    )
    add("--messages", nargs="+", type=int, default=MESSAGES_BYTES, help="sizes in bytes")
    add("--weights", nargs="+", type=int, default=WEIGHTS, help="numbers of weights a rank")
    add("--repeats", type=int, default=20, help="timed (default: 20)")
    add("--warmups", type=int, default=5, help="before them (default: 5)")
    add("--output", type=Path, help="append each result to this file as JSON")
    options = parser.parse_args()
    if "RANK" in os.environ:
        on_every_rank(options)
        return 0
    ranks = options.gpus or (2 if options.device == "cpu" else torch.cuda.device_count())
    if options.device == "cuda" and torch.cuda.device_count() < max(ranks, 1):
        print(
            f"parts_on_gpus: torch sees {torch.cuda.device_count()} CUDA GPUs; run it on a machine "
            "with enough (skipped)"
        )
        return 0
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name} × {ranks}, torch {torch.__version__}")
    columns = f"{'part':<16} {'ranks':>5} {'size':>9} {'median ms':>10} {'min ms':>9} {'max ms':>9}"
    print(f"{columns} {'GB/s':>8}", flush=True)
    return subprocess.run(launcher(ranks)).returncode


if __name__ == "__main__":
    sys.exit(main())
