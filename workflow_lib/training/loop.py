"""The steps of a run, and their records."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from torch import Tensor

from workflow_lib.records import STEPS, Cell, RankRecord, RunPaths, write_json
from workflow_lib.training.data import Source, step_batches
from workflow_lib.training.device import Device
from workflow_lib.training.failures import NonfiniteLoss
from workflow_lib.training.launch import end_with_job
from workflow_lib.training.mesh import Mesh


class Engine(Protocol):
    """What the loop needs of an engine."""

    parameters: int

    def train_step(self, batches: list[tuple[Tensor, Tensor]]) -> float:
        """Do one optimiser step and return the loss of the global batch, in nats."""
        ...


class StepWriter:
    """Appends rows to ``steps/rank<n>.csv``; each reaches the file whole, when it is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows = csv.writer(stream, lineterminator="\n")
        self._rows.writerow(column.name for column in STEPS)
        stream.flush()

    def write(self, **values: object) -> None:
        """Write one row; the names are those of STEPS."""
        self._rows.writerow(values[column.name] for column in STEPS)
        self._stream.flush()


def train(
    cell: Cell,
    mesh: Mesh,
    device: Device,
    engine: Engine,
    source: Source,
    paths: RunPaths,
    record: RankRecord,
    enter: Callable[[str], None],
) -> None:
    """Run the cell's warm-up and measured steps.

    ``enter`` is told the phase that begins, for the record of an error. Raises NonfiniteLoss, and
    whatever the engine or the data raise.
    """
    training = cell.training
    steps = training.warmup_steps + training.measured_steps
    sequences = training.micro_batches(mesh.degrees.dp) * training.micro_batch_size
    tokens = sequences * cell.model.sequence_length
    write_json(paths.rank(mesh.rank), record)
    with paths.rank_steps(mesh.rank).open("w", encoding="utf-8", newline="") as stream:
        writer = StepWriter(stream)
        for step in range(steps):
            phase = "warmup" if step < training.warmup_steps else "measured"
            end_with_job()
            started = time.time()
            enter("data")
            batches = step_batches(source, cell, mesh, step)
            enter("forward_backward")
            loss = engine.train_step(batches)
            device.synchronise()
            ended = time.time()
            finite = math.isfinite(loss)
            allocated, peak = device.memory_bytes()
            writer.write(
                step=step,
                phase=phase,
                started_unix_s=f"{started:.6f}",
                ended_unix_s=f"{ended:.6f}",
                loss=loss if finite else "",
                tokens=tokens,
                memory_allocated_bytes=allocated,
                memory_peak_bytes=peak,
            )
            if not finite:
                raise NonfiniteLoss(f"the loss of step {step} is {loss}")
            if mesh.rank == 0:
                rate = tokens * mesh.degrees.dp / (ended - started)
                print(
                    f"step {step + 1}/{steps} ({phase}) loss {loss:.3f} "
                    f"{ended - started:.3f} s {rate:.0f} tokens/s",
                    flush=True,
                )
