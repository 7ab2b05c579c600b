"""Made-up raw files of a whole study: its cells, their repeats, telemetry that swings with steps.

Of telemetry there are a few recordings for each platform, linked into the runs' directories: 915
of them would be gigabytes of the same kind. Steps are each run's own, so that every run has figures
of its own.
"""

from __future__ import annotations

import math
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from workflow_lib import cells, plan, results
from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import STEPS, RankRecord
from workflow_lib.records.nodes import TelemetryEnd, TelemetryStart
from workflow_lib.records.outcomes import Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
)
from workflow_lib.records.whole_files import write_json
from workflow_lib.study import load_study
from workflow_lib.table_files import write_table

#: the study's two scales: 32 GPUs of H200, 64 of H100
PLATFORMS = ("h200", "h100")
REPEATS = 3
START_S = 1_700_000_000.0
DURATION_S, IDLE_S, RATE_HZ, DRIVER_HZ = 60, 4, 10, 50
COUNTERS_EVERY_S = 10
WARMUP_STEPS, MEASURED_STEPS = 5, 20
#: a step begins at most so much later than the GPU's load of that step
MEAN_STEP_S = 2.0
RECORDINGS = 3


def study_cells(count: int) -> list[cells.PlannedCell]:
    """``count`` feasible cells of training in the study's sweeps on both platforms, and besides all
    that are infeasible there."""
    study = load_study(ROOT / "config")
    sweeps = [s for s in cells.expand_study(study).values() if s.platform in PLATFORMS]
    merged = [each for each, _ in cells.merge(sweeps).values()]
    training = [each for each in merged if each.cell.training.workload != "inference"]
    training.sort(key=lambda each: (each.cell.training.workload != "pretrain", each.cell.id))
    feasible = [each for each in training if each.feasible and each.cell.degrees.world_size > 16]
    if len(feasible) < count:
        raise SystemExit(f"the study has {len(feasible)} feasible cells, fewer than {count}")
    chosen = feasible[:count] + [each for each in training if not each.feasible]
    return [replace(each, cell=_shortened(each.cell), repeats=REPEATS) for each in chosen]


def _shortened(cell: Cell) -> Cell:
    training = replace(cell.training, warmup_steps=WARMUP_STEPS, measured_steps=MEASURED_STEPS)
    telemetry = replace(cell.telemetry, idle_baseline_s=float(IDLE_S), cool_down_to_c=None)
    return replace(cell, training=training, telemetry=telemetry)


def write_matrix(directory: Path, count: int) -> list[Path]:
    """Write ``plan.parquet`` and the raw files of all runs; returns the runs' directories."""
    chosen = study_cells(count)
    sweep = cells.Sweep("matrix", "matrix", "", "h200", tuple(chosen))
    write_table(plan.table([sweep]), directory / "plan.parquet")
    made: set[Path] = set()
    runs = []
    for planned in chosen:
        if not planned.feasible:
            continue
        for repeat in range(1, REPEATS + 1):
            cell, seed = planned.cell, len(runs) % RECORDINGS
            platform = directory / "recordings" / cell.hardware.platform
            recording, ranks = platform / str(seed), platform / cell.degrees.name
            if recording not in made:
                write_recording(RunPaths(recording), cell, seed, DURATION_S)
            if ranks not in made:
                write_ranks(RunPaths(ranks), cell)
            made |= {recording, ranks}
            run = results.run_directory(directory, cell.id, repeat)
            write_run(RunPaths(run), cell, RunPaths(recording), RunPaths(ranks), len(runs))
            runs.append(run)
    return runs


def write_run(paths: RunPaths, cell: Cell, recording: RunPaths, ranks: RunPaths, seed: int) -> None:
    """Write a run's cell, outcome and steps, and link to its telemetry and its ranks' records."""
    (paths.directory).mkdir(parents=True)
    write_json(paths.cell, cell)
    done = OutcomeRecord(Outcome.COMPLETED, "made up", "1", (), START_S, None, None, False)
    write_json(paths.outcome, done)
    for source, target in ((recording.telemetry, paths.telemetry), (ranks.steps, paths.steps)):
        target.mkdir()
        for path in source.iterdir():
            os.link(path, target / path.name)
    chance = random.Random(seed)
    step_s = MEAN_STEP_S * chance.uniform(0.9, 1.0)
    begin = START_S + IDLE_S + 1 + chance.uniform(0, 0.5)
    warmup, count = cell.training.warmup_steps, cell.training.measured_steps
    late = [sorted(chance.uniform(0, 0.05) for _ in range(4)) for _ in range(warmup + count)]
    tokens = cell.training.global_batch_size * cell.model.sequence_length // cell.degrees.dp
    header = ",".join(column.name for column in STEPS)
    texts = []
    for kind in range(4):  # ranks of four kinds, each ending a little later than the one before
        lines = [header]
        for step in range(warmup + count):
            started = begin + step * step_s
            ended = started + step_s - 0.06 + late[step][kind]
            phase = "warmup" if step < warmup else "measured"
            loss = f"{10 - step * 0.01:.4f}" if kind == 3 else ""
            times = f"{started:.6f},,{ended:.6f}"
            told = f"{step},{phase},{times},{loss},{tokens},{10**10},{2 * 10**10}"
            lines.append(told + "," * (len(STEPS) - told.count(",") - 1))
        texts.append("\n".join(lines) + "\n")
    for rank in range(cell.degrees.world_size):
        paths.rank_steps(rank).write_text(texts[rank % 4], encoding="utf-8")


def write_recording(paths: RunPaths, cell: Cell, seed: int, duration_s: int) -> None:
    """Write telemetry of all nodes of a platform's cells."""
    per_node = cell.ranks_per_node
    name = f"NVIDIA {cell.hardware.gpu}"
    for node in range(cell.nodes):
        of_node = f"node{node + 1}"
        start = TelemetryStart(
            of_node, "nvidia", False, START_S, RATE_HZ, ({"name": name},) * per_node, {}
        )
        write_json(paths.telemetry_start(of_node), start)
        end = TelemetryEnd(of_node, START_S + duration_s, duration_s * RATE_HZ, 0, 0, {}, 0.3, 1)
        write_json(paths.telemetry_end(of_node), end)
        _readings(node, seed, per_node, duration_s).write_csv(paths.gpu_samples(of_node))
        _driver_samples(node, seed, per_node, duration_s).write_csv(paths.power_samples(of_node))
        _counters(node, seed, per_node, duration_s).write_csv(paths.gpu_counters(of_node))
        host = [
            {column.name: at for column in HOST_SAMPLES} | {"unix_time_s": START_S + at}
            for at in range(duration_s + 1)
        ]
        pl.DataFrame(host).write_csv(paths.host_samples(of_node))
        empty = pl.DataFrame(schema=[column.name for column in GPU_EVENTS])
        empty.write_csv(paths.gpu_events(of_node))


def write_ranks(paths: RunPaths, cell: Cell) -> None:
    """Write where each rank of a layout ran."""
    degrees, per_node, name = cell.degrees, cell.ranks_per_node, f"NVIDIA {cell.hardware.gpu}"
    for rank in range(degrees.world_size):
        node, gpu = divmod(rank, per_node)
        dp_rank, tp_rank = rank // degrees.tp % degrees.dp, rank % degrees.tp
        stage = rank // (degrees.tp * degrees.dp)
        place = RankRecord(
            rank,
            f"node{node + 1}",
            gpu,
            name,
            tp_rank,
            stage,
            dp_rank,
            0,
            0,
            pid=1,
            started_unix_s=START_S + IDLE_S,
        )
        write_json(paths.rank(rank), place)


def power_w(elapsed_s: float, gpu: int, node: int, seed: int) -> float:
    """A GPU's power: idle, then swinging with the steps, each GPU a little apart."""
    if elapsed_s < IDLE_S:
        return 100.0 + gpu
    return 600 + gpu + node + seed + 80 * math.sin(2 * math.pi * elapsed_s / MEAN_STEP_S)


def _readings(node: int, seed: int, gpus: int, duration_s: int) -> pl.DataFrame:
    rows = [
        {
            "unix_time_s": START_S + tick / RATE_HZ + gpu * 1e-4,
            "gpu": gpu,
            "power_w": round(power_w(tick / RATE_HZ, gpu, node, seed), 3),
            "temperature_c": 55.0 + 2 * gpu + seed + (tick // 20) % 3,
            "sm_clock_mhz": 1500.0 + (tick + gpu) % 7 * 15,
            "memory_clock_mhz": 3201.0,
            "utilisation_percent": 100.0,
            "event_reasons": 4 if (tick + gpu) % 3 else 0,
            "lateness_s": 0.000321,
            "read_cost_s": 0.000012,
        }
        for tick in range(duration_s * RATE_HZ + 1)
        for gpu in range(gpus)
    ]
    return pl.DataFrame(rows).select(column.name for column in GPU_SAMPLES)


def _driver_samples(node: int, seed: int, gpus: int, duration_s: int) -> pl.DataFrame:
    """In the driver's order: of one GPU after the other, a batch every two seconds."""
    batch, start_us = 2 * DRIVER_HZ, int(START_S * 1e6)
    rows = [
        (
            start_us + at * 1_000_000 // DRIVER_HZ,
            gpu,
            round(1000 * power_w(at / DRIVER_HZ, gpu, node, seed)),
        )
        for first in range(-batch, duration_s * DRIVER_HZ + batch, batch)
        for gpu in range(gpus)
        for at in range(first, first + batch)
    ]
    return pl.DataFrame(rows, schema=[column.name for column in POWER_SAMPLES], orient="row")


def _counters(node: int, seed: int, gpus: int, duration_s: int) -> pl.DataFrame:
    """The energy counter is the integral of :func:`power_w`, everything else made up."""
    swing = 80 * MEAN_STEP_S / (2 * math.pi)
    rows = []
    for at in range(0, duration_s + 1, COUNTERS_EVERY_S):
        for gpu in range(gpus):
            loaded_s = max(at - IDLE_S, 0)
            energy_j = (100.0 + gpu) * min(at, IDLE_S) + (600 + gpu + node + seed) * loaded_s
            energy_j += swing * (1 - math.cos(2 * math.pi * loaded_s / MEAN_STEP_S))
            whole = {
                column.name: at * 1000 + 1 if column.type is int else float(at) / 100
                for column in GPU_COUNTERS
            }
            rows.append(
                {**whole, "unix_time_s": START_S + at, "gpu": gpu, "energy_j": 1e6 + energy_j}
            )
    return pl.DataFrame(rows).select(column.name for column in GPU_COUNTERS)
