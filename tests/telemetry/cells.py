"""A small cell for telemetry to watch, and the sampler as a process of its own."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import programs
from tests.made_cells import made_cell
from tests.waiting import until
from workflow_lib.records.cell import Cell, Telemetry, TelemetrySource
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

REPOSITORY = Path(__file__).parents[2]
NODE = "node01"


def make_cell(
    *,
    ranks: int = 2,
    nodes: int = 1,
    source: TelemetrySource = "simulated",
    rate_hz: float = 20.0,
    warmup_steps: int = 1,
    measured_steps: int = 2,
    interleaved_rates_hz: tuple[float, ...] = (),
    block_s: float = 0.0,
    **hardware: Any,
) -> Cell:
    """A cell of a tiny model on ``ranks`` GPUs; ``hardware`` replaces fields of its hardware."""
    plain = made_cell("lab")
    of_hardware = {
        **{"gpu": "H200", "gpus_per_node": ranks, "gpu_memory_bytes": 141 * 10**9},
        **{"power_limit_w": 700.0, "airflow": ("front", "rear") * 4},
    }
    return made_cell(
        id="lab/tiny/tp1-pp1-dp2_base_0000",
        model=Model("tiny", "llama", 2, 64, 128, 4, 4, 32, 256),
        degrees=Degrees(dp=ranks),
        training=dataclasses.replace(
            plain.training,
            zero_stage=0,
            global_batch_size=ranks,
            precision="fp32",
            warmup_steps=warmup_steps,
            measured_steps=measured_steps,
            seed=7,
        ),
        hardware=dataclasses.replace(plain.hardware, **(of_hardware | hardware)),
        telemetry=Telemetry(source, rate_hz, 0.0, interleaved_rates_hz, block_s),
        nodes=nodes,
    )


def start_sampler(directory: Path, cell: Cell, **environment: str) -> subprocess.Popen[str]:
    """Write the cell and start its sampler; ``environment`` is added to this process's own."""
    paths = RunPaths(directory)
    write_json(paths.cell, cell)
    command = [sys.executable, "-m", "workflow_lib.telemetry", str(paths.cell)]
    return programs.start(command, env={**os.environ, "SLURMD_NODENAME": NODE, **environment})


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until ``path`` exists; fails where the process ends or the time is up."""
    until(path.exists, process, f"{path} did not appear")


def script_of(name: str) -> dict[str, str]:
    """What a file beside this one has a library say that plays a vendor's, by key."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)


def read_rows(path: Path) -> list[dict[str, str]]:
    """A CSV file's whole lines; fails where any but the last is torn."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    names = lines[0].split(",")
    rows = [line.split(",") for line in lines[1:]]
    assert all(len(row) == len(names) for row in rows)
    return [dict(zip(names, row, strict=True)) for row in rows]


def refusal(paths: RunPaths, *program: str) -> str:
    """The one line with which the sampler of a run ends that cannot begin, or another program."""
    command = [sys.executable, *(program or ("-m", "workflow_lib.telemetry")), str(paths.cell)]
    process = programs.run(command, env={**os.environ, "SLURMD_NODENAME": NODE})
    assert process.returncode == 1
    assert process.stderr.count("\n") == 1, process.stderr
    return process.stderr
