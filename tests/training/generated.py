"""Generates with a list of cells of one world size, one after the other in the same processes.

Started by torch.distributed.run with a directory of cells; rank 0 writes what every rank saw: the
tokens that its replica chose in two steps, on ranks that have the last stage.
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
from workflow_lib.training import mesh as meshes
from workflow_lib.training.capabilities import refusal
from workflow_lib.training.data import SyntheticTokens, step_batches
from workflow_lib.training.engines.generation import GenerationEngine
from workflow_lib.training.launch import detect
from workflow_lib.training.mesh import Mesh


def generated(cell: Cell, mesh: Mesh) -> list[list[list[int]]] | None:
    """The tokens of each step, sequence by sequence of the replica; None without the last stage."""
    engine = GenerationEngine(cell, mesh)
    source = SyntheticTokens(cell.model.vocabulary_size)
    length = cell.model.sequence_length - cell.training.generated_tokens
    steps = []
    for step in range(2):
        engine.prefill([ids[:, :length] for ids, _ in step_batches(source, cell, mesh, step)])
        chosen = engine.decode()
        if chosen is not None:
            steps.append(torch.cat(chosen).tolist())
    return steps or None


def main() -> None:
    """Generate with the cells of the first argument's directory; write the second."""
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
        assert refusal(cell.degrees, cell.training, cell.model) is None
        mine: Any
        try:
            mine = generated(cell, meshes.create(cell.degrees, device.torch))
        except Exception:
            # What fails on every rank alike leaves the other cells their turn.
            mine = traceback.format_exc()
        everyone: list[Any] = [None] * launch.world_size
        dist.all_gather_object(everyone, mine)
        results[name] = everyone
    if launch.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
