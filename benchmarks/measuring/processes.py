"""The sampler, and Zeus's power monitor, as processes that can be paused and whose cost is read."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from workflow_lib.records.cell import Cell, Data, Hardware, Telemetry
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.files import read_record
from workflow_lib.records.model import Model
from workflow_lib.records.nodes import TelemetryEnd
from workflow_lib.records.paths import RunPaths, node_name
from workflow_lib.records.training import Training
from workflow_lib.records.whole_files import write_json

REPOSITORY = Path(__file__).resolve().parents[2]


def make_cell(gpus: int, rate_hz: float) -> Cell:
    """A cell that asks for NVIDIA telemetry of ``gpus`` GPUs; nothing else of it matters here."""
    return Cell(
        id="benchmark/none/tp1-pp1-dp1_telemetry_0",
        model=Model("none", "llama", 1, 64, 64, 1, 1, 64, 64),
        degrees=Degrees(dp=gpus),
        training=Training(
            zero_stage=0,
            micro_batch_size=1,
            global_batch_size=gpus,
            precision="bf16",
            recomputation="none",
            overlap=False,
            warmup_steps=0,
            measured_steps=1,
            learning_rate=0.0,
            seed=0,
        ),
        data=Data("none", "synthetic"),
        hardware=Hardware("benchmark", None, gpus, 1, None, None, None, None, ()),
        telemetry=Telemetry("nvidia", rate_hz, 0.0),
        nodes=1,
        software={},
    )


class Watched:
    """A process and its descendants: what they cost, and a way to hold them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def members(self) -> list[psutil.Process]:
        """It and all its descendants that live."""
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """CPU time of all of them, to the nanosecond."""
        total = 0.0
        for each in self.members():
            # The clock of a whole process, as clock_getcpuclockid(3) makes it.
            with contextlib.suppress(OSError):
                total += time.clock_gettime((~each.pid << 3) | 2)
        return total

    def memory_bytes(self) -> int:
        """Their resident memory together; pages they share count in each."""
        total = 0
        for each in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
        return total

    def pause(self) -> None:
        """Hold all of them."""
        self._each(psutil.Process.suspend)

    def resume(self) -> None:
        """Let all of them go on."""
        self._each(psutil.Process.resume)

    def end(self) -> None:
        """End all of them, whatever their state."""
        members = self.members()
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for each in members[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    def _each(self, act: Callable[[psutil.Process], None]) -> None:
        for each in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                act(each)


class SamplerProcess(Watched):
    """The real sampler, as a run starts it."""

    def __init__(self, directory: Path, gpus: int, rate_hz: float) -> None:
        """Start it in a new directory and wait until it samples. Raises RuntimeError."""
        self.paths = RunPaths(directory)
        self.rate_hz = rate_hz
        self.node = node_name()
        directory.mkdir(parents=True)
        write_json(self.paths.cell, make_cell(gpus, rate_hz))
        super().__init__(
            subprocess.Popen(
                [sys.executable, "-m", "workflow_lib.telemetry", str(self.paths.cell)],
                cwd=REPOSITORY,
                env={**os.environ, "SLURMD_NODENAME": self.node},
                text=True,
            )
        )
        deadline = time.monotonic() + 60
        while not self.paths.telemetry_ready(self.node).exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise RuntimeError("the sampler was not ready; see its message above")
            time.sleep(0.02)

    def stop(self) -> TelemetryEnd:
        """Ask it to end as a run does. Raises RuntimeError where it ends otherwise."""
        self.paths.telemetry_stop.touch()
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.end()
            raise RuntimeError("the sampler did not end within 30 s") from None
        if code != 0:
            raise RuntimeError(f"the sampler ended with code {code}; see its message above")
        return read_record(self.paths.telemetry_end(self.node), TelemetryEnd)

    def rows(self, path: Path) -> list[dict[str, str]]:
        """The rows of one of its files; none where the file is not there."""
        if not path.exists():
            return []
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))

    def achieved(self, start_unix_s: float, end_unix_s: float) -> dict[str, float]:
        """What it delivered of what was due between two times, and how late its ticks were."""
        rows = [
            row
            for row in self.rows(self.paths.gpu_samples(self.node))
            if start_unix_s <= float(row["unix_time_s"]) <= end_unix_s
        ]
        due = delivered = 0
        for gpu in {row["gpu"] for row in rows}:
            of_gpu = [row for row in rows if row["gpu"] == gpu]
            span_s = float(of_gpu[-1]["unix_time_s"]) - float(of_gpu[0]["unix_time_s"])
            due += round(span_s * self.rate_hz) + 1
            delivered += sum(bool(row["power_w"]) for row in of_gpu)
        first = [row for row in rows if row["gpu"] == "0"]
        late_s = [float(row["lateness_s"]) for row in first if row["lateness_s"]]
        cost_s = [float(row["read_cost_s"]) for row in rows]
        nothing = [float("nan")]
        late = 1e3 * np.quantile(late_s or nothing, (0.5, 0.99, 1.0))
        read = 1e6 * np.quantile(cost_s or nothing, (0.5, 0.99))
        return {
            "due": due,
            "delivered": delivered / due if due else 0.0,
            "lateness_p50_ms": late[0],
            "lateness_p99_ms": late[1],
            "lateness_max_ms": late[2],
            "read_cost_p50_us": read[0],
            "read_cost_p99_us": read[1],
        }


class ZeusProcess(Watched):
    """Zeus's power monitor of all GPUs."""

    def __init__(self, rate_hz: float) -> None:
        """Start it and wait until it polls. Raises RuntimeError where it is not installed."""
        super().__init__(
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("zeus_monitor.py")), str(rate_hz)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith("ready"):
            self.end()
            raise RuntimeError("Zeus did not start; see its message above")

    def stop(self) -> dict[str, Any]:
        """Ask it to end; samples it kept, by power domain and GPU. Raises RuntimeError."""
        try:
            out, _ = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.end()
            raise RuntimeError("Zeus did not end within 60 s") from None
        counts: dict[str, Any] = json.loads(out)
        return counts


@contextlib.contextmanager
def busy_cores() -> Iterator[int]:
    """A busy loop for each CPU core; gives their number."""
    count = len(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield count
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
