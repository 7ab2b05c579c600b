"""Where things lie under ``results/``; the files within one run are records.RunPaths'."""

from __future__ import annotations

from pathlib import Path

from workflow_lib.records import Data


def run_directory(results: Path, cell_id: str, run: int | str) -> Path:
    """The directory of one run of a cell."""
    return results / "cells" / cell_id / f"run{run}"


def sweep_directory(results: Path, sweep: str) -> Path:
    """What a sweep shows: its plan, tables, figures and report."""
    return results / "sweeps" / sweep


def tokens(results: Path, data: Data) -> Path | None:
    """The description of the data's token array; None where tokens are made up."""
    return results / "data" / data.name / "tokens.json" if data.kind == "text" else None
