"""Bytes over NVLink as ranks count them, against ring arithmetic, and the sampler's CPU beside it.

On all GPUs of this machine, for each collective and 1, 5 and 20 steps: what a rank counts in a step
in the way of training (trainers/native/links.py), and what rings send. The sampler runs at
10 Hz meanwhile; then steps go on for 40 s, over which its CPU time is taken. Under two minutes, and
no network:

    python3 research/link_bytes_on_gpus.py

It prints one table and one line of JSON, and returns 1 where a count is off by more than 0.5 % or
the sampler takes more than 0.5 % of a core. Needs torch, numpy, psutil and nvidia-ml-py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
# So that torch's number of a GPU is NVML's.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

from benchmarks.measuring.parts import Log
from benchmarks.measuring.processes import SamplerProcess
from research.measuring.link_steps import SHARES, LinkSteps, Row, expected_bytes

STEPS = (1, 5, 20)
LARGEST_DIFFERENCE = 0.005
LARGEST_CPU_SHARE = 0.005
#: of the steady steps, left out while the load settles
_SETTLE_S = 3.0
_LOOK_EVERY_S = 0.5


def compared(rows: list[Row], message_bytes: int, ranks: int) -> list[dict[str, Any]]:
    """For each collective and number of steps: the largest difference of any rank and direction."""
    found = []
    for collective in SHARES:
        expected = expected_bytes(collective, message_bytes, ranks)
        for steps in sorted({row["steps"] for row in rows}):
            mine = [r for r in rows if (r["collective"], r["steps"]) == (collective, steps)]
            counts = [row[way] for row in mine for way in ("sent", "received")]
            entry: dict[str, Any] = {
                "collective": collective,
                "steps": steps,
                "expected_bytes": expected,
                "lowest_bytes": None,
                "highest_bytes": None,
                "difference": None,
                "reason": next((row["reason"] for row in mine if row["reason"]), ""),
            }
            if None not in counts:
                worst = max(counts, key=lambda count: abs(count / expected - 1))
                entry |= {"lowest_bytes": min(counts), "highest_bytes": max(counts)}
                entry["difference"] = worst / expected - 1
            found.append(entry)
    return found


def passed(found: list[dict[str, Any]], cpu_share: float) -> bool:
    """Whether every count is there and close enough, and the sampler costs little enough."""
    differences = [each["difference"] for each in found]
    return cpu_share <= LARGEST_CPU_SHARE and all(
        difference is not None and abs(difference) <= LARGEST_DIFFERENCE
        for difference in differences
    )


def cpu_share(costs: list[tuple[float, float]], steady: tuple[float, float]) -> tuple[float, float]:
    """Share of a core over the steady steps, and over how many seconds that is; ``costs`` are
    times and CPU times. Raises ValueError where the steps were too short."""
    begin_s, end_s = min(steady[0] + _SETTLE_S, sum(steady) / 2), steady[1]
    inside = [cost for cost in costs if begin_s <= cost[0] <= end_s]
    if len(inside) < 2:
        raise ValueError("the steady steps were too short to tell the sampler's CPU time")
    took_s = inside[-1][0] - inside[0][0]
    return (inside[-1][1] - inside[0][1]) / took_s, took_s


def _texts(entry: dict[str, Any]) -> tuple[str, ...]:
    name, steps = entry["collective"], str(entry["steps"])
    arithmetic = f"{entry['expected_bytes'] / 1e6:.3f}"
    if entry["difference"] is None:
        return name, steps, entry["reason"], arithmetic, ""
    lowest, highest = entry["lowest_bytes"] / 1e6, entry["highest_bytes"] / 1e6
    difference = f"{100 * entry['difference']:+.4f}"
    return name, steps, f"{lowest:.3f} to {highest:.3f}", arithmetic, difference


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, help="how many (default: all)")
    parser.add_argument("--message", type=int, default=256, help="MiB a collective (default: 256)")
    parser.add_argument("--steady", type=float, default=40.0, help="seconds (default: 40)")
    parser.add_argument("--rate", type=float, default=10.0, help="of the sampler, in Hz")
    parser.add_argument(
        "--uuids", nargs="+", default=(), help="count these GPUs while ranks run on the CPU (tests)"
    )
    options = parser.parse_args(arguments)
    import torch

    ranks = len(options.uuids) or options.gpus or torch.cuda.device_count()
    if ranks < 2:
        print("link_bytes_on_gpus: needs a machine with two CUDA GPUs or more (skipped)")
        return 0
    message_bytes, log = options.message * 2**20, Log(None)
    with tempfile.TemporaryDirectory() as temporary:
        sampler = SamplerProcess(Path(temporary) / "sampler", ranks, options.rate)
        try:
            work = LinkSteps(ranks, message_bytes, STEPS, options.steady, tuple(options.uuids))
            costs = [(time.time(), sampler.cpu_s())]
            while not work.done(_LOOK_EVERY_S):
                costs.append((time.time(), sampler.cpu_s()))
            rows, steady = work.results()
            ended = sampler.stop()
        finally:
            sampler.end()
    found = compared(rows, message_bytes, ranks)
    log.table(
        ("collective", "steps", "counted/MB a step", "arithmetic/MB", "difference/%"),
        [_texts(each) for each in found],
    )
    share, took_s = cpu_share(costs, steady)
    log.say(f"sampler, {ranks} GPUs at {options.rate:g} Hz: {100 * share:.3f} % of a core")
    print(
        json.dumps(
            {
                "gpus": ranks,
                "message_bytes": message_bytes,
                "links": found,
                "each_rank": rows,
                "sampler_cpu_share": share,
                "sampler_over_s": took_s,
                "late_samples": ended.late_samples,
                "missed_samples": ended.missed_samples,
                "errors": dict(ended.errors),
                "passed": passed(found, share),
            }
        )
    )
    return int(not passed(found, share))


if __name__ == "__main__":
    sys.exit(main())
