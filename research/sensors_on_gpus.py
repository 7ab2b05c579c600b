"""What the sensors of this machine's NVIDIA GPUs are worth.

In parts, each of which prints a table and stands alone:

cost     what each reading costs, with the GPUs idle and under load
sensor   how often power and energy readings are renewed, and the windows over which they average,
         from square waves of matrix products
phases   while the real sampler watches: energy by power against energy by the counter, the GPUs'
         thermal time constants, and the split of temperatures over the slots
links    bytes over NVLink against the arithmetic of an all-reduce of known size

Needs torch, numpy, psutil and nvidia-ml-py, and takes about five minutes on four GPUs:

    python3 research/sensors_on_gpus.py --output sensors.jsonl
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
# So that torch's number of a GPU is NVML's.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

from benchmarks.measuring.parts import Log, parser, run_parts
from benchmarks.measuring.processes import make_cell
from research.measuring import links, load, phases, polling, readings, waves

PARTS = ("cost", "sensor", "phases", "links")
ALL_REDUCE_BYTES, ALL_REDUCES = 512 * 2**20, 20


class Benchmark:
    """The parts, and the processes that they share."""

    def __init__(self, gpus: int, directory: Path, log: Log, device: str = "cuda") -> None:
        self.gpus = gpus
        self.directory = directory
        self.log = log
        self.device = device
        self._load: load.Load | None = None

    def load(self) -> load.Load:
        """The load processes, started when they are first asked for."""
        if self._load is None:
            started = time.monotonic()
            self._load = load.Load(range(self.gpus), self.device)
            self.log.say(f"load processes ready after {time.monotonic() - started:.1f} s")
        return self._load

    def close(self) -> None:
        """End the load processes; they are started again when they are next asked for."""
        if self._load is not None:
            self._load.close()
            self._load = None

    def cost(self) -> None:
        """What each reading costs, idle and under load."""
        from workflow_lib.telemetry.choice import open_source

        nvml, handles = polling.open_handles()
        source = open_source(make_cell(self.gpus, 10.0), "benchmark")
        try:
            calls = {
                **readings.nvml_readings(nvml, handles[: self.gpus]),
                **readings.source_readings(source),
            }
            # Processes that wait on idle GPUs, so that only the load differs.
            worker = self.load()
            time.sleep(1.0)
            idle = self._costs(nvml, calls, "idle")
            worker.begin([(0.0, 300.0)], phases.MATRIX)
            time.sleep(3.0)
            try:
                loaded = self._costs(nvml, calls, "load")
            finally:
                worker.finish(60, abort=True)
        finally:
            source.close()
        self.log.table(
            (
                "reading, µs a call",
                *(f"{when} {what}" for when in ("idle", "load") for what in _COSTS),
                "answer under load",
            ),
            [
                (name, *_cost_cells(idle.get(name)), *_cost_cells(loaded.get(name)), answer)
                for name in calls
                for answer in [loaded[name].answer if name in loaded else "failed"]
            ],
        )

    def _costs(
        self, nvml: Any, calls: Mapping[str, readings.Reading], state: str
    ) -> dict[str, readings.Cost]:
        costs = {}
        for name, call in calls.items():
            try:
                costs[name] = readings.cost_of(nvml, call, self.gpus)
            except Exception as error:  # a call that this driver cannot make costs no other
                self.log.say(f"{name}: {type(error).__name__}: {error}")
                continue
            self.log.row("cost", reading=name, state=state, cost=costs[name])
        return costs

    def sensor(self) -> None:
        """How often readings are renewed, and their windows."""
        waves.Waves(self.gpus, self.load(), self.log).run()

    def phases(self) -> None:
        """Energy, thermal time constants and slots."""
        phases.Phases(self.gpus, self.load(), self.directory / "phases", self.log).run()

    def links(self) -> None:
        """Counted bytes over what a ring sends, for 2 GPUs and more."""
        self.close()  # their processes hold memory and contexts that are not needed here
        if self.gpus < 2:
            self.log.say("one GPU sends nothing over links (skipped)")
            return
        worlds = list(range(2, self.gpus + 1))
        rows = []
        for algorithm in ("Ring", None):
            found = links.all_reduce_counts(
                worlds, ALL_REDUCE_BYTES, ALL_REDUCES, algorithm, self.device
            )
            for row in found:
                self.log.row("links", size_bytes=ALL_REDUCE_BYTES, repeats=ALL_REDUCES, **row)
            for world in worlds:
                rows.append(_links_cells([row for row in found if row["ranks"] == world]))
        self.log.table(
            (
                "all-reduce",
                "GPUs",
                "expected/GB",
                "all links sent, difference/%",
                "received/%",
                "sum of links sent/%",
                "received/%",
                "links",
                "ms each",
            ),
            rows,
        )


_COSTS = ("p50", "p99", "CPU p50")


def _cost_cells(cost: readings.Cost | None) -> tuple[str, ...]:
    if cost is None:
        return ("–",) * 3
    return (f"{cost.wall_p50_us:.1f}", f"{cost.wall_p99_us:.1f}", f"{cost.cpu_p50_us:.1f}")


def _links_cells(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The GPUs' mean difference of counted from expected bytes, and the largest of any GPU."""
    expected = rows[0]["expected_bytes"]

    def difference(values: Sequence[float | None]) -> str:
        counted = [100 * (value / expected - 1) for value in values if value is not None]
        if len(counted) < len(values):
            return str(rows[0]["all_links"].get("reason", "not counted"))[:40]
        return f"{statistics.fmean(counted):+.2f} ({max(counted, key=abs):+.2f})"

    return (
        str(rows[0]["algorithm"]),
        str(rows[0]["ranks"]),
        f"{expected / 1e9:.3f}",
        difference([row["all_links"].get("sent") for row in rows]),
        difference([row["all_links"].get("received") for row in rows]),
        difference([row["links_sent"] for row in rows]),
        difference([row["links_received"] for row in rows]),
        str(rows[0]["links_counted"]),
        f"{1e3 * statistics.fmean(row['all_reduce_s'] for row in rows):.2f}",
    )


def main() -> int:
    """Run the parts; returns the exit code."""
    options = parser(__doc__, PARTS).parse_args()
    import torch

    gpus = options.gpus or torch.cuda.device_count()
    if gpus == 0:
        print("sensors_on_gpus: torch sees no CUDA GPU; run it on a machine with one (skipped)")
        return 0
    log = Log(options.output)
    log.say(f"{torch.cuda.get_device_name()} × {gpus}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        benchmark = Benchmark(gpus, options.keep or Path(temporary), log)
        parts = {name: getattr(benchmark, name) for name in PARTS}
        try:
            return run_parts(parts, options.parts, log)
        finally:
            benchmark.close()


if __name__ == "__main__":
    sys.exit(main())
