"""Synthetic tables of as many cells as the study has; every number is made up, from a seed.

Values only have the shape of measurements: they follow from no model of a GPU, and nothing may be
concluded from them. All rows are marked as simulated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from tests.made_cells import TRAINING, made_cell
from workflow_lib.records import cell_axes
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.measures import MEASURES, inapplicable
from workflow_lib.records.tables import CELLS, GPUS, KERNELS, RUNS, SERIES, STEP_TIMES, TRACES
from workflow_lib.report.figures.tables import Tables
from workflow_lib.table_files import table, write_table

REPEATS = 3
_COMPUTE = ("gemm", "attention", "normalisation_elementwise", "optimiser", "memory")
_FATES = ("out_of_memory", "infeasible", "communication_timeout", "telemetry_invalid", "not_run")

#: tp, pp, dp, ep of each model on 32 and on 64 GPUs, as in the study; (8, 1, …) are sharded
_DENSE = ((2, 16), (4, 8), (8, 4), (1, 32), (8, 1))
_LAYOUTS = {
    "gpt3-175b": _DENSE,
    "llama3-70b": _DENSE,
    "mixtral-8x7b": ((1, 1), (2, 1), (4, 1), (1, 4)),
    "mixtral-8x22b": ((1, 4), (2, 2), (4, 1), (8, 1)),
}
_PLATFORMS = {"h200": 32, "h100": 64, "mi250": 32}


def layouts() -> list[dict[str, Any]]:
    """The IDENTITY of 305 cells: optimisations at micro-batch 1, and micro-batch sizes."""
    found = []
    for platform, gpus in _PLATFORMS.items():
        for model, of_model in _LAYOUTS.items():
            for tp, pp in of_model:
                stages = pp * gpus // 32
                ep = 8 if model.startswith("mixtral") else 1
                dp = max(gpus // (tp * stages), ep)
                degrees = Degrees(tp=tp, pp=max(1, gpus // (tp * dp)), dp=dp, ep=ep)
                options = [(1, r, o) for r in ("none", "full") for o in (False, True)]
                options += [(size, "full", False) for size in (2, 4)]
                if (platform, model) != ("mi250", "mixtral-8x22b"):
                    options.append((8, "full", False))
                found += [
                    identity(platform, model, degrees, size, recomputation, overlap, gpus)
                    for size, recomputation, overlap in options
                ]
    return found[:305]


def identity(
    platform: str,
    model: str,
    degrees: Degrees,
    micro_batch: int = 1,
    recomputation: Any = "full",
    overlap: bool = False,
    gpus: int | None = None,
    workload: Any = "pretrain",
) -> dict[str, Any]:
    """The IDENTITY columns of a cell."""
    gpus = gpus or degrees.world_size
    training = replace(
        TRAINING,
        zero_stage=3 if degrees.tp == 8 and degrees.pp == 1 and degrees.ep == 1 else 1,
        micro_batch_size=micro_batch,
        recomputation=recomputation,
        overlap=overlap,
        sequence_parallel=degrees.tp > 1,
        backend="torch",
        workload=workload,
    )
    cell = made_cell(
        platform=platform,
        model=model,
        id=f"{platform}/{model}/{degrees.name}_{training.name}_01234567",
        degrees=degrees,
        training=training,
        nodes=max(1, gpus // 8),
    )
    return {**cell_axes.identity(cell), "gpus": gpus}


def cell_row(known: dict[str, Any], outcome: str = "completed", **measures: Any) -> dict[str, Any]:
    """A row of CELLS: a measure is its median, or median, low and high; others are null."""
    row = {
        **dict.fromkeys(column.name for column in CELLS),
        **known,
        "simulated": True,
        "repeats": REPEATS,
        "completed": REPEATS if outcome == "completed" else 0,
        "outcome": outcome,
        "cause": "made up",
        "interval": "range" if outcome == "completed" else None,
    }
    for name, value in measures.items():
        middle, low, high = value if isinstance(value, tuple) else (value, value, value)
        row |= {name: middle, f"{name}_low": low, f"{name}_high": high}
    return row


def run_row(known: dict[str, Any], run: int, **measures: Any) -> dict[str, Any]:
    """A row of RUNS."""
    return {
        **dict.fromkeys(column.name for column in RUNS),
        **known,
        "run": run,
        "simulated": True,
        "outcome": "completed",
        "missing_reasons": "{}",
        "energy_error_share": 0.0,
        **measures,
    }


def gpu_rows(known: dict[str, Any], run: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    """Rows of GPUS of a run: rear GPUs are hotter."""
    bound_gb = chance.uniform(50, 400)
    for node in range(known["nodes"]):
        for gpu in range(known["gpus"] // known["nodes"]):
            rear = gpu % 8 >= 4
            yield {
                **dict.fromkeys(column.name for column in GPUS),
                "cell": known["cell"],
                "run": run,
                "node": f"node{node + 1:02}",
                "gpu": gpu,
                "airflow": "rear" if rear else "front",
                "simulated": True,
                "temperature_mean_c": 52 + 9 * rear + chance.gauss(0, 2) + node,
                "throttle_power_share": min(1.0, chance.uniform(0.3, 0.9)),
                "throttle_thermal_share": 0.12 * rear * chance.random(),
                "throttle_brake_share": 0.0,
                "gpu_link_received_bytes": bound_gb * 1e11 * chance.uniform(0.9, 1.1),
                "gpu_link_sent_bytes": bound_gb * 1e11 * chance.uniform(0.9, 1.1),
                "missing_reasons": "{}",
            }


def series_frame(known: dict[str, Any], chance: random.Random, points: int = 150) -> pl.DataFrame:
    """Rows of SERIES of a cell: power swings with steps, temperature rises, clocks fall."""
    rows = []
    for node in range(known["nodes"]):
        for gpu in range(known["gpus"] // known["nodes"]):
            rear = gpu % 8 >= 4
            for point in range(points):
                elapsed = (point + 0.5) * 2.0 - 60.0
                warm = 1 - 2.718 ** (-(elapsed + 60) / 60)
                rows.append(
                    (
                        *(known["cell"], 1, f"node{node + 1:02}", gpu),
                        *("rear" if rear else "front", elapsed, 2.0),
                        600.0 + 60 * ((point // 3) % 2) + chance.gauss(0, 12),
                        35 + (22 + 9 * rear) * warm + chance.gauss(0, 0.4) + node,
                        1900 - 250 * rear * warm + chance.gauss(0, 10),
                        *(0.5, 0.1 * rear, 0.0),
                    )
                )
    names = [column.name for column in SERIES]
    return pl.DataFrame(rows, schema=names, orient="row")


def step_rows(known: dict[str, Any], step_s: float = 12.0) -> Iterator[dict[str, Any]]:
    """Rows of STEP_TIMES of a cell's first run."""
    for step in range(25):
        yield {
            "cell": known["cell"],
            "run": 1,
            "step": step,
            "phase": "warmup" if step < 5 else "measured",
            "counted": step >= 5,
            "elapsed_s": (step - 5) * step_s,
            "step_time_s": step_s,
        }


def trace_row(known: dict[str, Any], rank: int, steps: int = 2) -> dict[str, Any]:
    """A row of TRACES."""
    return {"cell": known["cell"], "run": 0, "rank": rank, "steps": steps, "on_gpu": True}


def kernel_rows(
    known: dict[str, Any], rank: int, seconds: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """Rows of KERNELS of a rank: ``seconds`` of each class, over all of its steps."""
    for name, of_class in seconds.items():
        yield {
            "cell": known["cell"],
            "run": 0,
            "rank": rank,
            "class": name,
            "kernels": 10,
            "kernel_s": of_class,
        }


def made_up_kernels(known: dict[str, Any], rank: int, chance: random.Random) -> dict[str, float]:
    """Seconds of each class, more of it of recomputing cells."""
    slower = 1.3 if known["recomputation"] == "full" else 1.0
    seconds = {name: chance.uniform(0.5, 4) * slower for name in _COMPUTE}
    seconds["gemm"] += 8 * slower
    seconds["all_reduce"] = chance.uniform(0.5, 2) * known["dp"] ** 0.5
    if known["tp"] > 1:
        seconds |= {"all_gather": chance.uniform(2, 3), "reduce_scatter": chance.uniform(2, 3)}
    if known["ep"] > 1:
        seconds["all_to_all"] = chance.uniform(4, 9)
    if known["pp"] > 1:
        stage = rank // (known["tp"] * known["dp"])
        seconds["send_receive"] = 0.3 * (known["pp"] - stage) + chance.uniform(0, 0.5)
    return seconds


def full_matrix(seed: int = 1, count: int = 305, points: int = 150) -> Tables:
    """All tables of the first ``count`` cells; every ninth did not complete."""
    chance = random.Random(seed)
    known = layouts()[:count]
    cells, runs, gpus, steps, kernels, traces = [], [], [], [], [], []
    series = [pl.DataFrame(schema=table([], SERIES).schema)]
    for number, each in enumerate(known):
        if number % 9 == 7:
            cells.append(cell_row(each, _FATES[number // 9 % len(_FATES)]))
            continue
        of_runs = []
        middle = _measures(each, chance)
        for run in range(1, REPEATS + 1):
            values = {name: value * chance.gauss(1, 0.01) for name, value in middle.items()}
            of_runs.append(run_row(each, run, **values))
            gpus += gpu_rows(each, run, chance)
        runs += of_runs
        cells.append(cell_row(each, **_medians(of_runs, each["workload"])))
        series.append(series_frame(each, chance, points))
        steps += step_rows(each)
        for rank in range(each["gpus"]):
            traces.append(trace_row(each, rank))
            kernels += kernel_rows(each, rank, made_up_kernels(each, rank, chance))
    return Tables(
        tuple(cells),
        tuple(runs),
        tuple(gpus),
        table(steps, STEP_TIMES),
        pl.concat(series),
        table(kernels, KERNELS),
        table(traces, TRACES),
    )


def write(tables: Tables, directory: Path) -> None:
    """Write every table as the stages before the report do."""
    for name, of_table in (("cells", CELLS), ("runs", RUNS), ("gpus", GPUS)):
        write_table(table(getattr(tables, name), of_table), directory / f"{name}.parquet")
    for name in ("steps", "series", "kernels", "traces"):
        write_table(getattr(tables, name), directory / f"{name}.parquet")


def _measures(known: dict[str, Any], chance: random.Random) -> dict[str, float]:
    """Made-up values of every measure that is drawn."""
    per_gpu = (
        chance.uniform(300, 900) * (1 + 0.2 * known["overlap"]) * known["micro_batch_size"] ** 0.3
    )
    power = chance.uniform(480, 640) + 15 * known["micro_batch_size"]
    return {
        "measured_duration_s": 240.0,
        "tokens_per_s": per_gpu * known["gpus"],
        "tokens_per_s_per_gpu": per_gpu,
        "tokens_per_j": per_gpu / power,
        "power_per_gpu_mean_w": power,
        "power_peak_w": power + 90,
        "temperature_mean_c": 58 + chance.gauss(0, 3),
        "temperature_peak_c": 76 + chance.gauss(0, 3),
        "sm_clock_mean_mhz": 1750 + chance.gauss(0, 50),
        "throttle_power_share": chance.uniform(0.2, 0.8),
        "throttle_thermal_share": chance.uniform(0.0, 0.15),
        "throttle_brake_share": 0.01 * (known["tp"] == 8),
        "energy_systematic_share": 0.05,
        # The others' values are drawn first, and stay as they were.
        "memory_peak_bytes": (held := chance.uniform(4e10, 1.2e11)),
        "memory_reserved_peak_bytes": held * 1.15,
        "memory_used_peak_bytes": held * 1.15 + 3.4e9,
        "memory_estimate_error": chance.uniform(-0.1, 0.1),
    }


def _medians(runs: Sequence[dict[str, Any]], workload: str) -> dict[str, Any]:
    found = {}
    for measure in MEASURES.values():
        values = sorted(run[measure.name] for run in runs if run[measure.name] is not None)
        if values and measure.type is float and measure.name not in inapplicable(workload):
            found[measure.name] = (values[len(values) // 2], values[0], values[-1])
    return found
