"""The steps of a run, and their records."""

from __future__ import annotations

import contextlib
import csv
import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import STEPS, RankRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json
from workflow_lib.trainers.engines import Engine
from workflow_lib.trainers.native.data import Source, step_batches
from workflow_lib.trainers.native.device import Device
from workflow_lib.trainers.native.experts import choices_of
from workflow_lib.trainers.native.failures import NonfiniteLoss
from workflow_lib.trainers.native.links import LinkCounting
from workflow_lib.trainers.native.mesh import Mesh
from workflow_lib.trainers.native.precisions import checked
from workflow_lib.trainers.observed import trace_recorder, write_trace

if TYPE_CHECKING:
    from workflow_lib.trainers.native.generation import GenerationEngine


class StepWriter:
    """Appends rows to ``steps/rank<n>.csv``; each row is flushed as a whole when it is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows = csv.writer(stream, lineterminator="\n")
        self._rows.writerow(column.name for column in STEPS)
        stream.flush()

    def write(self, **values: object) -> None:
        """Write one row; the names are those of STEPS."""
        self._rows.writerow(values[column.name] for column in STEPS)
        self._stream.flush()


@dataclass(frozen=True)
class Work:
    """The result of a step: a loss if it trained, the end of its prefill if it generated."""

    loss: float | None = None
    prefill_ended_unix_s: float | None = None


@dataclass(frozen=True)
class Run:
    """What this rank's steps need, the same for training and for generation."""

    cell: Cell
    mesh: Mesh
    device: Device
    source: Source
    paths: RunPaths
    #: the record of this rank, written before the first step and again after it
    record: RankRecord
    #: called with each phase that begins, for the record of an error
    enter: Callable[[str], None]
    #: if not 0, only so many steps follow the warm-up, and they are traced
    profiled_steps: int = 0


def train(run: Run, engine: Engine) -> None:
    """Run the cell's warm-up and measured steps of training.

    Raises WrongPrecision, NonfiniteLoss, and the errors of the engine and the data.
    """

    def step(number: int) -> Work:
        run.enter("data")
        batches = step_batches(run.source, run.cell, run.mesh, number)
        run.enter("forward_backward")
        loss = engine.train_step(batches)
        run.device.synchronise()
        return Work(loss=loss)

    _run_steps(run, engine, step)


def generate(run: Run, engine: GenerationEngine) -> None:
    """Run the cell's warm-up and measured steps of inference, as ``train`` does those of training.

    A step's prompts are the beginnings of the sequences that a step of training would train on.
    """
    length = run.cell.model.sequence_length - run.cell.training.generated_tokens

    def step(number: int) -> Work:
        run.enter("data")
        batches = step_batches(run.source, run.cell, run.mesh, number)
        prompts = [ids[:, :length] for ids, _ in batches]
        run.enter("prefill")
        engine.prefill(prompts)
        run.device.synchronise()
        prefill_ended = time.time()
        run.enter("decode")
        engine.decode()
        run.device.synchronise()
        return Work(prefill_ended_unix_s=prefill_ended)

    _run_steps(run, engine, step)


def _run_steps(run: Run, engine: Engine | GenerationEngine, do: Callable[[int], Work]) -> None:
    cell, mesh, paths = run.cell, run.mesh, run.paths

    def record(stepped: bool) -> None:
        precisions = checked(cell, engine.precisions(), stepped)
        write_json(paths.rank(mesh.rank), replace(run.record, precisions=precisions))

    record(stepped=False)
    training = cell.training
    steps = training.warmup_steps + (run.profiled_steps or training.measured_steps)
    sequences = training.micro_batches(mesh.degrees.dp) * training.micro_batch_size
    tokens = sequences * cell.model.sequence_length
    # The last generated token is never an input.
    routed = tokens - sequences if training.workload == "inference" else tokens
    profiler = links = None
    if run.profiled_steps:
        profiler = trace_recorder(run.device.torch, training.warmup_steps, run.profiled_steps)
    else:
        links = LinkCounting(mesh.rank, run.device, training.warmup_steps)
    with (
        paths.rank_steps(mesh.rank).open("w", encoding="utf-8", newline="") as stream,
        profiler or contextlib.nullcontext(),
    ):
        writer = StepWriter(stream)
        for step in range(steps):
            phase = "warmup" if step < training.warmup_steps else "measured"
            if links is not None and step == links.first_step:
                links.begin()
            if step == training.warmup_steps:
                _spare_what_stays()
            started = time.time()
            work = do(step)
            ended = time.time()
            finite = work.loss is None or math.isfinite(work.loss)
            memory = run.device.memory()
            choices = choices_of(engine.modules(), routed * cell.model.experts_per_token)
            prefill_ended = work.prefill_ended_unix_s
            writer.write(
                step=step,
                phase=phase,
                started_unix_s=f"{started:.6f}",
                prefill_ended_unix_s="" if prefill_ended is None else f"{prefill_ended:.6f}",
                ended_unix_s=f"{ended:.6f}",
                loss="" if work.loss is None or not finite else work.loss,
                tokens=tokens,
                **memory.row,
                expert_choices="" if choices is None else choices.made,
                dropped_choices="" if choices is None else choices.dropped,
            )
            if not finite:
                raise NonfiniteLoss(f"the loss of step {step} is {work.loss}")
            if step == 0:
                record(stepped=True)
            if mesh.rank == 0:
                rate = tokens * mesh.degrees.dp / (ended - started)
                result = "" if work.loss is None else f"loss {work.loss:.3f} "
                if prefill_ended is not None:
                    result = f"prefill {prefill_ended - started:.3f} s of "
                print(
                    f"step {step + 1}/{steps} ({phase}) {result}"
                    f"{ended - started:.3f} s {rate:.0f} tokens/s",
                    flush=True,
                )
            if profiler is not None:
                profiler.step()
    if links is not None:
        write_json(paths.link_count(mesh.rank), links.end(steps))
    if profiler is not None:
        run.enter("trace")
        write_trace(profiler, paths.trace(mesh.rank))


def _spare_what_stays() -> None:
    """Have the garbage collector no longer walk the objects of torch, the model and compiled code.

    A full collection walks all of them, which takes as long as a short step: 0.18 s. Each rank
    would do that in another step, and all others would wait for it.
    """
    gc.collect()
    gc.freeze()
