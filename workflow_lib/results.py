"""Where things lie under ``results/``; the files within one run are records.RunPaths'."""

from __future__ import annotations

import re
from pathlib import Path

from workflow_lib.records import Data, RecordError


def run_directory(results: Path, cell_id: str, run: int | str) -> Path:
    """The directory of one run of a cell."""
    return results / "cells" / cell_id / f"run{run}"


def run_number(directory: Path) -> int:
    """Which repeat of its cell a run's directory holds: k of ``run<k>``.

    Raises RecordError where the directory has another name.
    """
    name = directory.resolve().name
    if match := re.fullmatch(r"run([1-9][0-9]*)", name):
        return int(match[1])
    raise RecordError(f"{directory}: a run's directory is called run1, run2, …, not {name!r}")


def sweep_directory(results: Path, sweep: str) -> Path:
    """What a sweep shows: its plan, tables, figures and report."""
    return results / "sweeps" / sweep


def array_directory(results: Path, name: str) -> Path:
    """What a job array starts from: its script, and a script and a link to the run for each task."""
    return results / "arrays" / name


def tokens(results: Path, data: Data) -> Path | None:
    """The description of the data's token array; None where tokens are made up."""
    return results / "data" / data.name / "tokens.json" if data.kind == "text" else None
