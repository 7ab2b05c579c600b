"""Trains a list of cells of one world size, one after the other in the same processes.

Started by torch.distributed.run with a directory of cells; rank 0 writes what every rank saw: each
step's loss and gradient norm. Imports are paid for once.
"""

from __future__ import annotations

import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workflow_lib.records import Cell, read_record
from workflow_lib.training import device as devices
from workflow_lib.training import engines
from workflow_lib.training import mesh as meshes
from workflow_lib.training.capabilities import refusal
from workflow_lib.training.data import TokenFile, step_batches
from workflow_lib.training.launch import detect


def losses(cell: Cell, device: devices.Device, tokens: Path) -> dict[str, Any]:
    """Train a cell as the training program would, without its files."""
    assert refusal(cell.degrees, cell.training, cell.model) is None
    mesh = meshes.create(cell.degrees, device.torch)
    if cell.training.compile:
        torch._dynamo.reset()  # so that this cell compiles what an earlier one may have
        torch._dynamo.utils.counters.clear()
    engine = engines.create(cell, mesh)
    source = TokenFile(tokens, cell.model.vocabulary_size, cell.model.sequence_length + 1)
    steps = cell.training.warmup_steps + cell.training.measured_steps
    values, norms = [], []
    for step in range(steps):
        values.append(engine.train_step(step_batches(source, cell, mesh, step)))
        norms.append(engine.gradient_norm())
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] if cell.training.compile else 0
    return {
        "losses": values,
        "norms": norms,
        "parameters": engine.parameters,
        "compiled_graphs": graphs,
    }


def main() -> None:
    """Train the cells of the first argument's directory on the third's tokens; write the second."""
    launch = detect()
    files = sorted(Path(sys.argv[1]).glob("*.json"))
    cells = {file.stem: read_record(file, Cell) for file in files}
    first = next(iter(cells.values()))
    device = devices.choose(launch, first.hardware, first.telemetry)
    dist.init_process_group(
        device.backend,
        init_method=f"tcp://{launch.master_address}:{launch.master_port}",
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timedelta(seconds=60),
    )
    results = {}
    for name, cell in cells.items():
        mine: dict[str, Any]
        try:
            mine = losses(cell, device, Path(sys.argv[3]))
        except Exception:
            # What fails on every rank alike leaves the other cells their turn.
            mine = {"error": traceback.format_exc()}
        everyone: list[Any] = [None] * launch.world_size
        dist.all_gather_object(everyone, mine)
        results[name] = everyone
    if launch.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
