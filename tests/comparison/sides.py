"""Made-up sides of a comparison: cells and their runs, in memory or as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.report.full_matrix import cell_row, identity, run_row
from workflow_lib.comparison.sensors import Errors
from workflow_lib.comparison.sides import Side
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.measures import MEASURES
from workflow_lib.records.tables import CELLS, GPUS, RUNS
from workflow_lib.table_files import table, write_table

#: of each GPU, unless a test says otherwise
POWER_W = 700.0


def _has_gain(name: str) -> bool:
    return name in MEASURES and MEASURES[name].gain != 0


def known(
    platform: str = "h200", tp: int = 2, pp: int = 16, dp: int = 1, **other: Any
) -> dict[str, Any]:
    """The identity of a cell."""
    model = other.pop("model", "llama3-70b")
    return identity(platform, model, Degrees(tp=tp, pp=pp, dp=dp), **other)


def measured(
    of_cell: dict[str, Any],
    simulated: bool = False,
    gpu: str | None = None,
    sensors: str = "nvidia",
    **measures: Sequence[Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A cell that completed with as many runs as each measure has values, and these runs."""
    count = len(next(iter(measures.values())))
    runs = [
        run_row(
            of_cell,
            number + 1,
            gpu_name=gpu or f"NVIDIA {of_cell['platform'].upper()}",
            **{
                **({"power_per_gpu_mean_w": POWER_W} if any(map(_has_gain, measures)) else {}),
                **{name: values[number] for name, values in measures.items()},
            },
        )
        | {"simulated": simulated, "sensors": sensors}
        for number in range(count)
    ]
    middle = {
        name: sorted(values)[count // 2]
        for name, values in measures.items()
        if None not in values and name in {column.name for column in CELLS}
    }
    cell = cell_row(of_cell, **middle) | {"simulated": simulated, "completed": count}
    return cell, runs


def failed(
    of_cell: dict[str, Any], outcome: str, cause: str = ""
) -> tuple[dict[str, Any], list[Any]]:
    """A cell without a completed run."""
    return cell_row(of_cell, outcome) | {"simulated": False, "cause": cause}, []


def side(
    name: str,
    *cells: tuple[dict[str, Any], list[dict[str, Any]]],
    gpus: dict[tuple[str, int], frozenset[str]] | None = None,
    limits_w: dict[tuple[str, int], tuple[float, ...]] | None = None,
    errors: Errors | None = None,
) -> Side:
    """A side in memory. The GPUs of a run draw alike."""
    runs = tuple(run for _, of_cell in cells for run in of_cell)
    power_w = {
        (run["cell"], run["run"]): {
            uuid: {
                "power_mean_w": run["power_per_gpu_mean_w"] * run["gpus"] / len(own),
                "power_peak_w": run["power_peak_w"],
            }
            for uuid in own
        }
        for run in runs
        if run["power_per_gpu_mean_w"] and (own := (gpus or {}).get((run["cell"], run["run"])))
    }
    return Side(
        name,
        f"sweep-{name}",
        tuple(cell for cell, _ in cells),
        runs,
        gpus or {},
        limits_w or {},
        power_w,
        errors or {},
    )


def write(
    directory: Path,
    *cells: tuple[dict[str, Any], list[dict[str, Any]]],
    gpus: Sequence[dict[str, Any]] = (),
) -> Path:
    """The tables of a side; returns their directory."""
    write_table(table([cell for cell, _ in cells], CELLS), directory / "cells.parquet")
    runs = [run for _, of_cell in cells for run in of_cell]
    write_table(table(runs, RUNS), directory / "runs.parquet")
    write_table(table(gpus, GPUS), directory / "gpus.parquet")
    return directory


def numbers(text):
    """The numbers of a sentence, with their signs: what it says, in whichever words."""
    return re.findall(r"[−+±]?\d+(?:\.\d+)?", text)
