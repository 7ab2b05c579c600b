"""How long ``reduce`` and ``collect`` take for a whole study, against the same in pandas.

    python benchmarks/full_matrix.py [cells] [every]

305 cells with three repeats each on 32 and 64 GPUs: 915 runs of a minute, readings at 10 Hz, the
driver's own power samples at 50 Hz, counters every 10 s (``measuring/matrix.py``). Both commands
run with two processes on two cores; wall time, CPU time and peak memory include interpreters and
imports. The peer (``measuring/pandas_reduction.py``) reduces all repeats of one cell in ``every``
(20 unless given), as two processes as well, and its time is multiplied up. Its measures must be
those of reduce. Exits 1 where they are not, or where a whole study misses 60 s or 2 GB.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measuring import matrix, pandas_reduction
from benchmarks.reduce_64_gpus import cost_of, told
from workflow_lib.records.paths import RunPaths

PROCESSES = 2
CELLS, EVERY = 305, 20
BAR_WALL_S, BAR_MEMORY_BYTES = 60.0, 2e9


def peer(runs: list[Path]) -> None:
    """Reduce runs in pandas, and print the medians of each cell."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        reduced = list(pool.map(pandas_reduction.reduce_run, runs, chunksize=3))
    table = pd.DataFrame([each["run"] for each in reduced])
    table["cell"] = [str(run.parent) for run in runs]
    of_cells = table.groupby("cell").agg(["median", "min", "max"])
    print(f"pandas: {len(of_cells)} cells with {of_cells.shape[1]} figures each")


def differences(run: Path) -> list[str]:
    """In what reduce and pandas differ about a run."""
    paths = RunPaths(run)
    theirs = pandas_reduction.reduce_run(run)
    ours = json.loads(paths.summary.read_text(encoding="utf-8"))["run"]
    found = [
        f"{run}: {name} is {ours[name]}, in pandas {value}"
        for name, value in theirs["run"].items()
        # Idle power is over the time that all of a node's GPUs were read, there of each by itself.
        if not math.isclose(ours[name], value, rel_tol=1e-4 if name == "idle_power_w" else 1e-7)
    ]
    steps = pl.read_parquet(paths.step_times)
    series = pl.read_parquet(paths.series)
    ordered = theirs["series"].sort_values(["node", "gpu", "place"])
    for name, own, others, column, tolerance in (
        ("energies of steps", steps, theirs["steps"], "energy_j", 1e-2),
        ("hottest GPUs of steps", steps, theirs["steps"], "hottest_c", 1e-6),
        ("clocks of steps", steps, theirs["steps"], "sm_clock_mean_mhz", 1e-4),
        ("temperatures of steps", steps, theirs["steps"], "temperature_mean_c", 1e-6),
        ("power over time", series, ordered, "power_w", 0.051),
        ("temperature over time", series, ordered, "temperature_c", 0.051),
    ):
        if not np.allclose(own[column], others[column], rtol=0, atol=tolerance):
            found.append(f"{run}: {name} differ")
    return found


def main() -> int:
    """Make the study, time both, print them; returns the exit code."""
    if sys.argv[1:2] == ["--peer"]:
        peer([Path(run) for run in sys.argv[2:]])
        return 0
    count = int(sys.argv[1]) if sys.argv[1:] else CELLS
    every = int(sys.argv[2]) if sys.argv[2:] else EVERY
    with tempfile.TemporaryDirectory() as temporary:
        results = Path(temporary)
        runs = matrix.write_matrix(results, count)
        analysis = [sys.executable, "-m", "workflow_lib.analysis"]
        reducing = cost_of([*analysis, "reduce", "--processes", str(PROCESSES), *map(str, runs)])
        print(told(f"reduce of {len(runs)} runs", reducing))
        tables = ["--plan", results / "plan.parquet", "--results", results, "--output", results]
        collecting = cost_of([*analysis, "collect", *map(str, tables)])
        print(told("collect", collecting))
        sample = [run for place, run in enumerate(runs) if place // matrix.REPEATS % every == 0]
        pandas = cost_of([sys.executable, __file__, "--peer", *map(str, sample)])
        print(told(f"pandas, {len(sample)} of the runs", pandas))
        found = [problem for run in sample[::3] for problem in differences(run)]
    for problem in found:
        print(problem, file=sys.stderr)
    wall_s = reducing.wall_s + collecting.wall_s
    cpu_s = reducing.cpu_s + collecting.cpu_s
    share = len(runs) / len(sample)
    # The parent hands out runs; no more than its workers does it hold.
    memory_bytes = max((PROCESSES + 1) * reducing.peak_memory_bytes, collecting.peak_memory_bytes)
    print(
        f"all: {wall_s:.1f} s, at most {memory_bytes / 1e6:.0f} MB; pandas takes "
        f"{pandas.wall_s * share / wall_s:.1f} times as long, "
        f"{pandas.cpu_s * share / cpu_s:.1f} times the CPU time"
    )
    missed = wall_s > BAR_WALL_S or memory_bytes > BAR_MEMORY_BYTES
    return 1 if found or (count == CELLS and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
