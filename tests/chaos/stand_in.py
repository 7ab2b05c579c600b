"""Stands in for ``workflow_lib.trainers.native`` where faults are under test: it trains nothing.

It writes what training writes, record by record, with losses that are known beforehand, and takes
a second instead of ten. Where ``.hold`` lies in the run's directory, its ranks wait in the middle
of their steps until it is gone; ``.devour`` there has rank 0 take memory until something stops it;
and by the seconds in ``.skew`` the clock of the last rank is ahead.
``.trained`` gets a line for each beginning and each end of a rank: what really ran.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
import traceback
from pathlib import Path

from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import STEPS, RankRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import ErrorRecord, Outcome
from workflow_lib.records.paths import RunPaths, node_name
from workflow_lib.records.whole_files import write_json

#: seconds that a step takes
STEP_S = 0.12
#: the step before which ranks wait while they are held
HOLD_BEFORE = 3
_DEVOURED_AT_ONCE = 4_000_000


def loss(step: int) -> float:
    """What every rank reports of a step, in nats."""
    return round(11.0 / (step + 2), 6)


def main() -> int:
    """Returns the exit code, as training does: 0, or 1 after an error, which is on disk by then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cell", type=Path)
    parser.add_argument("--tokens", type=Path)
    options = parser.parse_args()
    cell = read_record(options.cell, Cell)
    paths = RunPaths(options.cell.resolve().parent)
    rank = int(os.environ["SLURM_PROCID"])
    print("stand-in: no model is trained; losses are made up", flush=True)
    _note(paths, "began", rank)
    try:
        _train(cell, paths, rank)
    except Exception as error:
        # As training does: whatever it is has to be on disk before this process goes.
        record = ErrorRecord(
            rank=rank,
            node=node_name(),
            unix_time_s=time.time(),
            phase="forward_backward",
            outcome=Outcome.OUT_OF_MEMORY if isinstance(error, MemoryError) else Outcome.ERROR,
            message=str(error) or type(error).__name__,
            traceback=traceback.format_exc(),
        )
        write_json(paths.rank_error(rank), record)
        return 1
    _note(paths, "ended", rank)
    return 0


def _note(paths: RunPaths, what: str, rank: int) -> None:
    job = os.environ["SLURM_JOB_ID"]
    descriptor = os.open(paths.directory / ".trained", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{what} {job} {rank} {time.time():.6f}\n".encode())
    os.close(descriptor)


def _train(cell: Cell, paths: RunPaths, rank: int) -> None:
    started = time.time()
    training = cell.training
    degrees = cell.degrees
    tokens = training.micro_batches(degrees.dp) * training.micro_batch_size
    tokens *= cell.model.sequence_length
    skew = paths.directory / ".skew"
    record = RankRecord(
        rank=rank,
        node=node_name(),
        gpu=None,
        device_name="stand-in",
        tp_rank=0,
        pp_rank=0,
        dp_rank=rank,
        ep_rank=0,
        parameters=1000,
        pid=os.getpid(),
        started_unix_s=started,
    )
    write_json(paths.rank(rank), record)
    with paths.rank_steps(rank).open("w", encoding="utf-8", newline="") as stream:
        rows = csv.DictWriter(stream, [column.name for column in STEPS], lineterminator="\n")
        rows.writeheader()
        for step in range(training.warmup_steps + training.measured_steps):
            if step == HOLD_BEFORE:
                _wait_while_held(paths, rank)
            began = time.time()
            (paths.steps / f"rank{rank}.began{step}").touch()
            time.sleep(STEP_S)
            _wait_for_others(paths, degrees.world_size, step)
            is_last = rank == degrees.world_size - 1
            ahead_s = float(skew.read_text()) if is_last and skew.exists() else 0.0
            rows.writerow(
                {
                    "step": step,
                    "phase": "warmup" if step < training.warmup_steps else "measured",
                    "started_unix_s": f"{began + ahead_s:.6f}",
                    "ended_unix_s": f"{time.time() + ahead_s:.6f}",
                    "loss": loss(step),
                    "tokens": tokens,
                    "memory_allocated_bytes": 1_000_000,
                    "memory_peak_bytes": 2_000_000,
                }
            )
            stream.flush()


def _wait_for_others(paths: RunPaths, ranks: int, step: int) -> None:
    """As in a collective, no rank ends a step before all have begun it."""
    began = [paths.steps / f"rank{rank}.began{step}" for rank in range(ranks)]
    while not all(each.exists() for each in began):
        time.sleep(0.02)


def _wait_while_held(paths: RunPaths, rank: int) -> None:
    taken = []
    while (paths.directory / ".hold").exists():
        if rank == 0 and (paths.directory / ".devour").exists():
            taken.append(bytearray(_DEVOURED_AT_ONCE))
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
