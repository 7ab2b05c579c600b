"""What the sampler achieves and costs on real NVIDIA GPUs.

The real sampler process watches all GPUs of this machine while each of them runs bursts of matrix
products. From what it wrote, this prints the rate achieved, late samples, what reading a GPU cost,
what the sampler itself cost, and how far each GPU's trapezoid of power lies from its energy counter
over the same span. Needs torch and nvidia-ml-py:

    python3 benchmarks/telemetry_on_gpus.py --seconds 30 --rate 10
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

import torch

from workflow_lib import records

#: a burst, and the pause after it: power then has edges, where trapezoid and counter could differ
_BURST_S = 3.0
_PAUSE_S = 1.0
_MATRIX = 8192

Row = dict[str, str]


def make_cell(gpus: int, rate_hz: float) -> records.Cell:
    """A cell that asks for NVIDIA telemetry of ``gpus`` GPUs; nothing else of it matters here."""
    return records.Cell(
        id="benchmark/none/tp1-pp1-dp1_telemetry_0",
        model=records.Model("none", "llama", 1, 64, 64, 1, 1, 64, 64),
        degrees=records.Degrees(dp=gpus),
        training=records.Training(0, 1, gpus, "bf16", "none", False, 0, 1, 0.0, 0),
        data=records.Data("none", "synthetic"),
        hardware=records.Hardware("benchmark", None, gpus, 1, None, None, None, None, ()),
        telemetry=records.Telemetry("nvidia", rate_hz, 0.0),
        nodes=1,
        software={},
    )


def run_bursts(gpus: int, seconds: float) -> None:
    """Bursts of bf16 matrix products on every GPU, until the time is up."""
    devices = [torch.device("cuda", index) for index in range(gpus)]
    matrices = [torch.randn(_MATRIX, _MATRIX, device=d, dtype=torch.bfloat16) for d in devices]
    outputs = [torch.empty_like(matrix) for matrix in matrices]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        burst_end = min(time.monotonic() + _BURST_S, end)
        while time.monotonic() < burst_end:
            for matrix, output in zip(matrices, outputs, strict=True):
                for _ in range(20):
                    torch.mm(matrix, matrix, out=output)
            for device in devices:
                torch.cuda.synchronize(device)
        time.sleep(_PAUSE_S)


def sample(directory: Path, gpus: int, rate_hz: float, seconds: float) -> str:
    """Run the sampler beside the bursts; returns the node's name. Raises RuntimeError."""
    paths = records.RunPaths(directory)
    records.write_json(paths.cell, make_cell(gpus, rate_hz))
    node = records.node_name()
    process = subprocess.Popen(
        [sys.executable, "-m", "workflow_lib.telemetry", str(paths.cell)],
        cwd=REPOSITORY,
        env={**os.environ, "SLURMD_NODENAME": node},
    )
    try:
        while not paths.telemetry_ready(node).exists():
            if process.poll() is not None:
                raise RuntimeError("the sampler ended before it was ready; see its message above")
            time.sleep(0.05)
        time.sleep(2.0)  # some idle time first
        run_bursts(gpus, seconds)
        paths.telemetry_stop.touch()
        if process.wait(timeout=10) != 0:
            raise RuntimeError(f"the sampler ended with code {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return node


def read_rows(path: Path) -> list[Row]:
    """The rows of a sample file."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def energy_line(gpu: int, rows: list[Row]) -> str:
    """One GPU's energy, by the trapezoid of power and by its counter, between counter readings."""
    counted = [row for row in rows if row["energy_j"]]
    first_s, last_s = (float(counted[i]["unix_time_s"]) for i in (0, -1))
    inside = [
        (float(row["unix_time_s"]), float(row["power_w"]))
        for row in rows
        if row["power_w"] and first_s <= float(row["unix_time_s"]) <= last_s
    ]
    trapezoid_j = sum((p + q) / 2 * (t - s) for (s, p), (t, q) in itertools.pairwise(inside))
    counter_j = float(counted[-1]["energy_j"]) - float(counted[0]["energy_j"])
    capped = [row["throttle_power_cap_s"] for row in rows if row["throttle_power_cap_s"]]
    capped_s = f"{float(capped[-1]) - float(capped[0]):8.2f}" if capped else "       –"
    difference = 100 * (counter_j / trapezoid_j - 1)
    hottest_c = max(float(row["temperature_c"]) for row in rows if row["temperature_c"])
    return (
        f"{gpu:3d} {trapezoid_j:13.1f} {counter_j:11.1f} {difference:+8.3f}"
        f" {max(p for _, p in inside):8.1f} {hottest_c:6.0f} {capped_s}"
    )


def report(paths: records.RunPaths, node: str) -> None:
    """Print what the files say."""
    start = records.read_record(paths.telemetry_start(node), records.TelemetryStart)
    end = records.read_record(paths.telemetry_end(node), records.TelemetryEnd)
    rows = read_rows(paths.gpu_samples(node))
    first = [float(row["unix_time_s"]) for row in rows if row["gpu"] == "0"]
    span_s = first[-1] - first[0]
    gaps = [b - a for a, b in itertools.pairwise(first)]
    print(f"{len(start.gpus)} × {start.gpus[0]['name']}, driver {start.gpus[0]['driver_version']}")
    print(f"rate       {(len(first) - 1) / span_s:.3f} Hz of {start.sample_rate_hz} Hz asked")
    print(f"samples    {end.samples} in {span_s:.1f} s, {end.late_samples} late")
    print(f"gaps       median {statistics.median(gaps):.4f} s, longest {max(gaps):.4f} s")
    for name, costs in (
        ("fast", [float(r["read_cost_s"]) for r in rows if not r["energy_j"]]),
        ("slow", [float(r["read_cost_s"]) for r in rows if r["energy_j"]]),
    ):
        if len(costs) > 1:
            cuts = statistics.quantiles(costs, n=100)
            print(
                f"read cost  {name}: p50 {1e3 * cuts[49]:.3f} ms, p99 {1e3 * cuts[98]:.3f} ms a GPU"
            )
    print(
        f"sampler    {end.cpu_time_s:.2f} s CPU, {100 * end.cpu_time_s / span_s:.2f} % of a core, "
        f"{end.peak_memory_bytes / 1e6:.1f} MB at most"
    )
    throttle = sum(bool(row["throttle_sw_thermal_s"]) for row in rows)
    print(f"throttle   slowdown counters in {throttle} of {len(rows)} rows")
    print(f"errors     {dict(end.errors) or 'none'}")
    print(f"missing    {dict(start.missing) or 'none'}")
    print("GPU   trapezoid/J   counter/J   diff/%   peak/W  max/°C  capped/s")
    for gpu in range(len(start.gpus)):
        print(energy_line(gpu, [row for row in rows if row["gpu"] == str(gpu)]))


def main() -> int:
    """Run and report; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=30.0, help="of bursts (default: 30)")
    parser.add_argument("--rate", type=float, default=10.0, help="samples a second (default: 10)")
    parser.add_argument("--keep", type=Path, help="an empty directory that keeps the files")
    options = parser.parse_args()
    gpus = torch.cuda.device_count()
    if gpus == 0:
        print("telemetry_on_gpus: torch sees no CUDA GPU; run it on a machine with one (skipped)")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        try:
            node = sample(directory, gpus, options.rate, options.seconds)
        except RuntimeError as error:
            print(f"telemetry_on_gpus: {error}", file=sys.stderr)
            return 1
        report(records.RunPaths(directory), node)
    return 0


if __name__ == "__main__":
    sys.exit(main())
