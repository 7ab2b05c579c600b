"""A made-up study up to its tables, with the scripts, environments and logs of its runs."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measuring import matrix
from tests.report import full_matrix
from workflow_lib.config import Platform
from workflow_lib.launch.job import node
from workflow_lib.launch.job_script import Code, Places, job_script
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.tables import CELLS, KERNELS, TRACES
from workflow_lib.records.whole_files import write_json
from workflow_lib.study import load_study
from workflow_lib.table_files import read_table, table, write_table

SWEEP = "matrix"
_PYTHON = "workflow_lib.analysis"


def made(results: Path, count: int, run: Callable[[list[str]], object]) -> Path:
    """The sweep's directory, with the tables of ``count`` cells; made unless it is there.

    ``run`` runs the commands. Exits where ``results`` holds something else, or is half made.
    """
    directory = results / "sweeps" / SWEEP
    done = results / f"made-{count}-cells"
    if done.exists():
        return directory
    if results.exists() and any(results.iterdir()):
        raise SystemExit(f"{results} holds no study of {count} cells that is whole; remove it")
    runs = matrix.write_matrix(results, count)
    platforms, environment = load_study(matrix.ROOT / "config").platforms, node.environment()
    for number, each in enumerate(runs):
        _write_files(RunPaths(each), number, platforms, environment)
    run([sys.executable, "-m", _PYTHON, "reduce", "--processes", "2", *map(str, runs)])
    tables = ["--plan", results / "plan.parquet", "--results", results, "--output", directory]
    run([sys.executable, "-m", _PYTHON, "collect", *map(str, tables)])
    shutil.copy(results / "plan.parquet", directory)
    _write_kernels(directory)
    done.touch()
    return directory


def _write_files(
    paths: RunPaths, number: int, platforms: dict[str, Platform], environment: dict[str, Any]
) -> None:
    """What a job leaves for its cell's page: script, environment, and the log of training."""
    cell = read_record(paths.cell, Cell)
    platform = platforms[cell.hardware.platform]
    places = Places(
        Path("/srv/triptych"),
        Path("/srv/triptych/results/run"),
        None,
        Code(Path("/srv/triptych/results/code/1000/0.zip"), None, None),
    )
    paths.script.write_text(job_script(cell, platform, places, 60), encoding="utf-8")
    ran = {"node": f"node{number % 4 + 1}", "job_id": str(10_000 + number), "nvidia_driver": "580"}
    write_json(paths.environment, environment | ran)
    chance = random.Random(number)
    steps = matrix.WARMUP_STEPS + matrix.MEASURED_STEPS
    paths.logs.mkdir()
    (paths.logs / "training.log").write_text(
        "".join(
            f"step {step}/{steps} (measured) loss {10 - step * 0.1 + chance.random():.3f} "
            f"{chance.uniform(1.8, 2.2):.3f} s {chance.uniform(4e4, 9e4):.0f} tokens/s\n"
            for step in range(1, steps + 1)
        ),
        encoding="utf-8",
    )


def _write_kernels(directory: Path) -> None:
    """Kernels of a profiled run of every cell, so that their figures are drawn, too."""
    chance = random.Random(1)
    completed = [
        row
        for row in read_table(directory / "cells.parquet", CELLS).to_dicts()
        if row["outcome"] == "completed"
    ]

    def of_ranks() -> Iterator[tuple[dict[str, Any], int]]:
        return ((row, rank) for row in completed for rank in range(row["gpus"]))

    traces = [full_matrix.trace_row(row, rank) for row, rank in of_ranks()]
    kernels = [
        line
        for row, rank in of_ranks()
        for line in full_matrix.kernel_rows(
            row, rank, full_matrix.made_up_kernels(row, rank, chance)
        )
    ]
    write_table(table(traces, TRACES), directory / "traces.parquet")
    write_table(table(kernels, KERNELS), directory / "kernels.parquet")
