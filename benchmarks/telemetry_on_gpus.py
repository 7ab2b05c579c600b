"""What the sampler costs training on this machine's NVIDIA GPUs, and what it achieves.

All GPUs run steps of matrix products and an all-reduce, without a pause. Beside them, in parts:

slowdown  the real sampler at several rates, and Zeus's power monitor of all GPUs, each for blocks
          of a few seconds between blocks in which nothing is read; they are started as a run or a
          user starts them, and held (SIGSTOP) while it is not their turn
steady    each alone without a break: CPU time, memory, samples delivered, lateness
busy      the sampler with a busy loop on every CPU core beside it

Needs torch, numpy, psutil and nvidia-ml-py, and Zeus for what is called zeus; about six minutes:

    python3 benchmarks/telemetry_on_gpus.py --output telemetry.jsonl
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
# So that torch's number of a GPU is NVML's.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

from benchmarks.measuring import pairs
from benchmarks.measuring.pairs import NOTHING, Block
from benchmarks.measuring.parts import Log, parser, run_parts
from benchmarks.measuring.processes import SamplerProcess, Watched, ZeusProcess, busy_cores
from benchmarks.measuring.ranks import Ranks

PARTS = ("slowdown", "steady", "busy")
MATRIX, PRODUCTS, ALL_REDUCE_BYTES = 8192, 12, 256 * 2**20
WARM_UP_S = 15.0
#: how long each rate runs alone, and beside busy cores
STEADY_S, BUSY_S = {"sampler-10": 15.0, "sampler-50": 20.0, "zeus-10": 10.0}, 12.0
_SETTLE_S = 2.0


@dataclass
class Benchmark:
    """The parts, and the ranks beside which they run."""

    gpus: int
    #: of what is tried: sampler-10 is the sampler at 10 Hz, zeus-10 is Zeus
    names: Sequence[str]
    rounds: int
    block_s: float
    directory: Path
    log: Log
    _ranks: Ranks | None = None
    _started: int = 0

    def ranks(self) -> Ranks:
        """The ranks, started and warmed up when they are first asked for."""
        if self._ranks is None:
            started = time.monotonic()
            self._ranks = Ranks(self.gpus, MATRIX, PRODUCTS, ALL_REDUCE_BYTES)
            self.log.say(f"ranks ready after {time.monotonic() - started:.1f} s")
            time.sleep(WARM_UP_S)
        self._ranks.check()
        return self._ranks

    def close(self) -> None:
        """End the ranks."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    def start(self, name: str) -> SamplerProcess | ZeusProcess:
        """Start what a name stands for, in a directory of its own. Raises RuntimeError."""
        kind, _, rate = name.partition("-")
        if kind == "zeus":
            return ZeusProcess(float(rate))
        self._started += 1
        directory = self.directory / f"{self._started}-{name}"
        return SamplerProcess(directory, self.gpus, float(rate))

    # ------------------------------------------------------------------------------- slowdown

    def slowdown(self) -> None:
        """Blocks with each, between blocks with nothing, in one run of steps."""
        ranks = self.ranks()
        watched: dict[str, Watched] = {}
        try:
            for name in self.names:
                try:
                    watched[name] = self.start(name)
                except RuntimeError as error:
                    self.log.say(f"{name}: {error}")
                    self.log.row("slowdown", name=name, error=str(error))
            time.sleep(_SETTLE_S)
            for one in watched.values():
                one.pause()
            blocks, cpu_s = self._take_turns(ranks, watched)
            steps = ranks.step_ends()
        finally:
            for one in watched.values():
                one.end()
        self.log.row("slowdown-raw", blocks=blocks, step_ends=steps, cpu_s=cpu_s)
        self._report(blocks, cpu_s, steps)

    def _take_turns(
        self, ranks: Ranks, watched: dict[str, Watched]
    ) -> tuple[list[Block], dict[str, float]]:
        blocks: list[Block] = []
        cpu_s = dict.fromkeys(watched, 0.0)
        for name in pairs.order_of_blocks(list(watched), self.rounds, seed=1):
            ranks.check()
            one = watched.get(name)
            if one is not None:
                before = one.cpu_s()
                one.resume()
            start = time.time()
            time.sleep(self.block_s)
            end = time.time()
            if one is not None:
                one.pause()
                cpu_s[name] += one.cpu_s() - before
            blocks.append(Block(name, start, end))
        return blocks, cpu_s

    def _report(self, blocks: list[Block], cpu_s: dict[str, float], steps: list[float]) -> None:
        rows = []
        for name in [*cpu_s, NOTHING]:
            mine = [block for block in blocks if block.name == name]
            times = [step for block in mine for step in pairs.steps_of(block, steps)]
            means = pairs.slowdowns(blocks, steps, name)
            medians = pairs.slowdowns(blocks, steps, name, statistics.median)
            of_mean, of_median = pairs.interval(means), pairs.interval(medians)
            length_s = sum(block.end_s - block.start_s for block in mine)
            share = cpu_s[name] / length_s if name in cpu_s else float("nan")
            self.log.row(
                "slowdown",
                name=name,
                gpus=self.gpus,
                steps=len(times),
                step_s=statistics.fmean(times),
                slowdown=of_mean,
                slowdown_of_median=of_median,
                each=means,
                cpu_share=share,
            )
            rows.append(
                {
                    "beside training": name,
                    "pairs": str(of_mean.pairs),
                    "steps": str(len(times)),
                    "step/ms": f"{1e3 * statistics.fmean(times):.3f}",
                    "slow-down/%": f"{100 * of_mean.mean:+.3f}",
                    "95 % bootstrap": _range(of_mean.low, of_mean.high),
                    "95 % t": _range(of_mean.t_low, of_mean.t_high),
                    "of medians/%": f"{100 * of_median.mean:+.3f}",
                    "their 95 % bootstrap": _range(of_median.low, of_median.high),
                    "CPU/% of a core": f"{100 * share:.3f}",
                }
            )
        self.log.table(rows)

    # ------------------------------------------------------------------------------- alone

    def steady(self) -> None:
        """Each without a break."""
        self.ranks()
        self._alone("steady", {name: STEADY_S.get(name, 15.0) for name in self.names})

    def busy(self) -> None:
        """The samplers beside a busy loop on every core."""
        self.ranks()
        names = [name for name in self.names if name.startswith("sampler")]
        with busy_cores() as cores:
            self.log.say(f"{cores} cores, each with a busy loop")
            self._alone("busy", dict.fromkeys(names, BUSY_S))

    def _alone(self, part: str, seconds: dict[str, float]) -> None:
        rows = []
        for name, duration_s in seconds.items():
            try:
                rows.append(self._one_alone(part, name, duration_s))
            except Exception as error:  # what one of them lacks costs the others nothing
                self.log.say(f"{name}: {type(error).__name__}: {error}")
                self.log.row(part, name=name, error=f"{type(error).__name__}: {error}")
        self.log.table(rows)

    def _one_alone(self, part: str, name: str, duration_s: float) -> dict[str, str]:
        one = self.start(name)
        try:
            time.sleep(_SETTLE_S)
            cpu_before, start = one.cpu_s(), time.time()
            time.sleep(duration_s)
            cpu_s, end = one.cpu_s() - cpu_before, time.time()
            memory, members = one.memory_bytes(), len(one.members())
            if isinstance(one, SamplerProcess):
                ended = one.stop()
                achieved = one.achieved(start, end)
                tail = f"{ended.late_samples}, {ended.missed_samples}"
                kept = ""
                self.log.row(part, name=name, end=ended, **achieved)
            else:
                counts = one.stop()
                achieved, tail = {}, ""
                lived_s = time.time() - start + _SETTLE_S
                kept = ", ".join(
                    f"{domain} {statistics.fmean(of_gpus.values()) / lived_s:.1f}/s"
                    for domain, of_gpus in counts.items()
                )
                self.log.row(part, name=name, kept=counts, lived_s=lived_s)
        finally:
            if one.process.poll() is None:
                one.end()
        share = cpu_s / (end - start)
        self.log.row(
            part, name=name, gpus=self.gpus, cpu_share=share, rss_bytes=memory, processes=members
        )
        return {
            "beside training": name,
            "s": f"{end - start:.0f}",
            "CPU/% of a core": f"{100 * share:.3f}",
            "RSS/MB": f"{memory / 1e6:.1f}",
            "processes": str(members),
            **{
                head: f"{scale * achieved[key]:.3f}" if key in achieved else ""
                for head, (key, scale) in _ACHIEVED.items()
            },
            "late, missed": tail,
            "kept": kept,
        }


#: what the sampler alone says of itself: the column, its key and its factor
_ACHIEVED = {
    "delivered/%": ("delivered", 100.0),
    "late p50/ms": ("lateness_p50_ms", 1.0),
    "late p99/ms": ("lateness_p99_ms", 1.0),
    "late max/ms": ("lateness_max_ms", 1.0),
    "read p50/µs": ("read_cost_p50_us", 1.0),
    "read p99/µs": ("read_cost_p99_us", 1.0),
}


def _range(low: float, high: float) -> str:
    return f"{100 * low:+.3f} to {100 * high:+.3f}"


def main() -> int:
    """Run the parts; returns the exit code."""
    arguments = parser(__doc__, PARTS)
    arguments.add_argument(
        "--beside", nargs="+", default=["sampler-10", "sampler-50", "zeus-10"], help="what is tried"
    )
    arguments.add_argument("--rounds", type=int, default=10, help="blocks of each (default: 10)")
    arguments.add_argument(
        "--block", type=float, default=3.75, help="seconds a block (default: 3.75)"
    )
    options = arguments.parse_args()
    import torch

    gpus = options.gpus or torch.cuda.device_count()
    if gpus == 0:
        print("telemetry_on_gpus: torch sees no CUDA GPU; run it on a machine with one (skipped)")
        return 0
    log = Log(options.output)
    log.say(f"{torch.cuda.get_device_name()} × {gpus}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        benchmark = Benchmark(gpus, options.beside, options.rounds, options.block, directory, log)
        parts = {name: getattr(benchmark, name) for name in PARTS}
        try:
            return run_parts(parts, options.parts, log)
        finally:
            benchmark.close()


if __name__ == "__main__":
    sys.exit(main())
