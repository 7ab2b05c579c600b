"""Where things lie under ``results/``; the files within one run are records.RunPaths'."""

from __future__ import annotations

import re
from pathlib import Path

from workflow_lib.records import Data, RecordError, SweepPaths

#: the run of a cell that is profiled, apart from those that are measured
PROFILED_RUN = 0


def run_directory(results: Path, cell_id: str, run: int | str) -> Path:
    """The directory of one run of a cell."""
    return results / "cells" / cell_id / f"run{run}"


def run_number(directory: Path) -> int:
    """Which run of its cell a directory holds, k of ``run<k>``: a repeat, or the profiled one.

    Raises RecordError where the directory has another name.
    """
    name = directory.resolve().name
    if match := re.fullmatch(r"run(0|[1-9][0-9]*)", name):
        return int(match[1])
    raise RecordError(f"{directory}: a run's directory is called run0, run1, …, not {name!r}")


def run_numbers(repeats: int, profiled_steps: int) -> tuple[int, ...]:
    """The numbers of a cell's runs: those that are measured, then the profiled one if any."""
    return (*range(1, repeats + 1), *([PROFILED_RUN] if profiled_steps else []))


def is_profiled(directory: Path) -> bool:
    """Whether the directory is that of a cell's profiled run."""
    return directory.resolve().name == f"run{PROFILED_RUN}"


def sweep_paths(results: Path, sweep: str) -> SweepPaths:
    """What a sweep shows: its plan, tables, figures and report."""
    return SweepPaths(results / "sweeps" / sweep)


def comparisons(results: Path, sweep: str = "*") -> list[Path]:
    """The directories of comparisons that there are: all, or those with a sweep."""
    directory = results / "comparisons"
    found = {*directory.glob(f"{sweep}_vs_*"), *directory.glob(f"*_vs_{sweep}")}
    return sorted(each for each in found if each.is_dir())


def array_directory(results: Path, name: str) -> Path:
    """What a job array starts from: its script, and a script and a link to each run."""
    return results / "arrays" / name


def tokens(results: Path, data: Data) -> Path | None:
    """The description of the data's token array; None where tokens are made up."""
    return results / "data" / data.name / "tokens.json" if data.kind == "text" else None
