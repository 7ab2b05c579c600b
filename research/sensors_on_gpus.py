"""What readings of this machine's NVIDIA GPUs cost, how often they are new, and over which time
power is a mean.

In parts, each of which prints a table and stands alone:

cost     what each reading costs under load
sensor   how often power and energy are renewed, and the window over which a reading of power is a
         mean: of what the driver's own samples say, while square waves of matrix products run
map      how far each reading of power and energy is off where a load is in step with the sensor, by
         the load's period; how long the sensor looks; over which time an energy is right to 1 %
counter  whether the energy counter or the driver's samples are off in step with a load of steady
         power: what each says of it beside loads of nearly its period

Needs torch, numpy, scipy and nvidia-ml-py, and takes about eighteen minutes:

    make sensors
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
# So that torch's number of a GPU is NVML's.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

from benchmarks.measuring.parts import Log, parser, run_parts
from research.measuring import readings, sensor_map
from research.measuring.load import COPIES, ROWS, Wave, square_waves, working
from research.measuring.sensor_response import fit_window, update_period

PARTS = ("cost", "sensor", "map", "counter")
#: first one that brings clocks up; periods of the others share no factor with each other or with a
#: sensor's period, so that updates meet every phase
WAVES = tuple(
    Wave(*each)
    for each in (
        *((0.4, 5), (0.043, 58), (0.097, 26), (0.151, 17), (0.251, 12), (0.499, 6)),
        *((0.797, 5), (1.201, 5), (1.999, 4), (3.109, 4)),
    )
)
#: rows of the matrices of waves that may be 2 ms long
_SHORT_ROWS = 2048


@dataclass(frozen=True)
class Seen:
    """What changed while waves ran."""

    #: (reading, GPU) → its changes
    changes: dict[tuple[str, int], list[readings.Change]]
    #: when the waves began, wall clock
    began_unix_s: float
    #: of each GPU, when its work began and ended, span by span
    edges: list[list[float]]


class Benchmark:
    """The parts, on the first GPUs."""

    def __init__(self, gpus: int, log: Log) -> None:
        self.gpus = gpus
        self.log = log
        self.nvml, self.handles = readings.open_handles()

    def what(self) -> dict[str, Any]:
        """The GPUs, and the driver."""
        uuids = [self.nvml.nvmlDeviceGetUUID(handle) for handle in self.handles[: self.gpus]]
        return {"uuids": uuids, "driver": self.nvml.nvmlSystemGetDriverVersion()}

    def cost(self) -> None:
        """What each reading costs while the GPUs work."""
        rows = []
        with working(range(self.gpus), [(0.0, 300.0)]):
            time.sleep(3.0)
            for name, call in readings.nvml_readings(self.nvml, self.handles).items():
                cost = readings.cost_of(self.nvml, call, self.gpus)
                self.log.row("cost", reading=name, cost=cost)
                wall = {"median": f"{cost.wall_p50_us:.1f}", "p99": f"{cost.wall_p99_us:.1f}"}
                cpu = {"CPU, median": f"{cost.cpu_p50_us:.1f}", "declined": cost.declined}
                rows.append({"reading, µs a call": name, **wall, **cpu})
        self.log.table(rows)

    def sensor(self) -> None:
        """How often readings are renewed, and the window of power, on the first two GPUs, which are
        enough and spare the site's power supply. Raises ValueError where too little was seen.
        """
        seen = self._seen(WAVES, readings.POLLED, ROWS).changes
        periods, windows = [], []
        for (name, gpu), changes in seen.items():
            self.log.row("sensor-raw", reading=name, gpu=gpu, seen=changes)
            period = update_period([at for at, _ in changes])
            self.log.row("period", reading=name, gpu=gpu, period=period)
            row = {"reading": name, "GPU": str(gpu), "updates": str(len(changes))}
            periods.append(row | _ms(("period, ms", "from", "to"), period))
        self.log.table(periods)
        for gpu in sorted({gpu for _, gpu in seen}):
            found = fit_window(seen[readings.POWER, gpu], seen[readings.SAMPLES, gpu])
            self.log.row("window", gpu=gpu, window=found)
            times = _ms(
                ("window of power, ms", "from", "to", "delay"),
                (found.window_s, found.low_s, found.high_s, found.delay_s),
            )
            fit = {"R²": f"{found.r2:.4f}", "left out": str(found.left_out)}
            windows.append({"GPU": str(gpu), **times, **fit})
        self.log.table(windows)

    def map(self) -> None:
        """How far readings are off, by the load's period, on the first two GPUs. Raises ValueError
        where too little was seen.
        """
        names = (*readings.POLLED, readings.MOMENTARY)
        turns = self._turns("map", sensor_map.TURNS, names, _SHORT_ROWS)
        # All is measured before any of it is looked at.
        self.log.table(
            [
                row
                for waves, seen in turns
                for gpu in range(len(seen.edges))
                for row in self._map_of(gpu, names, waves, seen)
            ]
        )

    def counter(self) -> None:
        """How far the counter and the driver's samples are off in step with a load of steady power,
        on the first two GPUs. Raises ValueError where too little was seen.
        """
        names = (readings.ENERGY, readings.SAMPLES)
        turns = self._turns("counter", sensor_map.COUNTER_TURNS, names, COPIES)
        rows = []
        for waves, seen in turns:
            for gpu in range(len(seen.edges)):
                of_gpu = {name: seen.changes[name, gpu] for name in names}
                off = sensor_map.bracket(waves, of_gpu, seen.began_unix_s)
                row = {"GPU": str(gpu), "period, ms": f"{1e3 * off.wave.period_s:.2f}"}
                row["duty"] = f"{off.wave.duty:g}"
                for name, both in off.in_step.items():
                    for turn, of_wave in zip(("there", "back"), both, strict=True):
                        shares = of_wave.mean, of_wave.low, of_wave.high
                        shown = " ".join(f"{100 * each:+.1f}" for each in shares)
                        row[f"{name}, {turn}, %"] = shown
                rows.append(row)
        self.log.table(rows)

    def _turns(
        self, part: str, turns: Sequence[Sequence[Wave]], names: Sequence[str], rows: int
    ) -> list[tuple[Sequence[Wave], Seen]]:
        """What changed in each turn, which is kept before the next begins."""
        every = []
        for turn, waves in enumerate(turns):
            seen = self._seen(waves, names, rows)
            for (name, gpu), changes in seen.changes.items():
                self.log.row(f"{part}-raw", turn=turn, reading=name, gpu=gpu, seen=changes)
            for gpu, edges in enumerate(seen.edges):
                began = {"began_unix_s": seen.began_unix_s}
                self.log.row(f"{part}-edges", turn=turn, gpu=gpu, **began, edges=edges)
            every.append((waves, seen))
        return every

    def _map_of(
        self, gpu: int, names: Sequence[str], waves: Sequence[Wave], seen: Seen
    ) -> list[dict[str, str]]:
        changes, rows, first = {name: seen.changes[name, gpu] for name in names}, [], 0
        for of_wave in sensor_map.map_rows(waves, changes, seen.began_unix_s):
            wave = of_wave.wave
            row = {"GPU": str(gpu), "period, ms": f"{1e3 * wave.period_s:.2f}"}
            row["duty"] = f"{wave.duty:g}"
            for name, off in of_wave.errors.items():
                row[f"{name}, %"] = f"{100 * off.low:+.1f} {100 * off.high:+.1f}"
            rows.append(row)
            if wave == sensor_map.IN_STEP:
                edges = seen.edges[gpu][2 * first : 2 * (first + wave.count)]
                look = sensor_map.fit_look(changes[readings.SAMPLES], edges[::2], edges[1::2])
                times = _ms(("a look, ms", "its delay, ms"), (look.length_s, look.delay_s))
                self.log.say(f"GPU {gpu}, " + ", ".join(f"{k}: {v}" for k, v in times.items()))
            first += wave.count
        return rows

    def _seen(self, waves: Sequence[Wave], names: Sequence[str], rows: int) -> Seen:
        """What changed while the waves ran, on the first two GPUs."""
        spans, gpus, stop = square_waves(waves), range(min(2, self.gpus)), Event()
        keys = [(name, gpu) for name in names for gpu in gpus]
        length_s = sum(wave.duration_s for wave in waves)
        with ThreadPoolExecutor(len(keys)) as pool, working(gpus, spans, rows) as (began, edges):
            try:
                polling = [
                    pool.submit(readings.changes_of, self.nvml, name, self.handles[gpu], stop)
                    for name, gpu in keys
                ]
                time.sleep(began + length_s - time.time())
            finally:
                stop.set()
            changes = {key: each.result() for key, each in zip(keys, polling, strict=True)}
            return Seen(changes, began, [list(of_gpu) for of_gpu in edges])


def _ms(heads: Sequence[str], times_s: Sequence[float]) -> dict[str, str]:
    return {head: f"{1e3 * each:.2f}" for head, each in zip(heads, times_s, strict=True)}


def main() -> int:
    """Run the parts; returns the exit code."""
    options = parser(__doc__, PARTS).parse_args()
    import torch

    gpus = options.gpus or torch.cuda.device_count()
    if gpus == 0:
        print("sensors_on_gpus: torch sees no CUDA GPU; run it on a machine with one")
        return 1
    log = Log(options.output)
    log.say(f"{torch.cuda.get_device_name()} × {gpus}, torch {torch.__version__}")
    benchmark = Benchmark(gpus, log)
    about = {"name": torch.cuda.get_device_name(), "torch": torch.__version__}
    log.row("gpus", **about, **benchmark.what())
    return run_parts({name: getattr(benchmark, name) for name in PARTS}, options.parts, log)


if __name__ == "__main__":
    sys.exit(main())
