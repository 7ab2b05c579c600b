"""Paths under ``results/``; records.RunPaths has those of the files within one run."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from workflow_lib.records.cell import Data
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.reading import RecordError

#: the number of a cell's profiled run
PROFILED_RUN = 0


def run_directory(results: Path, cell_id: str, run: int | str) -> Path:
    """The directory of one run of a cell."""
    return results / "cells" / cell_id / f"run{run}"


def runs_of_cell(results: Path, cell_id: str) -> list[Path]:
    """The directories of a cell's runs that exist."""
    return sorted((results / "cells" / cell_id).glob("run*"))


def of_run(directory: Path, cell_id: str) -> Path:
    """The results directory of a run's directory: the inverse of ``run_directory``."""
    return directory.parents[len(Path("cells", cell_id).parts)]


def run_number(directory: Path) -> int:
    """The number of the run in a directory ``run<k>``: k, which is 0 for the profiled run.

    Raises RecordError if the directory has another name.
    """
    name = directory.resolve().name
    if match := re.fullmatch(r"run(0|[1-9][0-9]*)", name):
        return int(match[1])
    raise RecordError(f"{directory}: a run's directory is called run0, run1, …, not {name!r}")


def run_numbers(repeats: int, profiled_steps: int) -> tuple[int, ...]:
    """The numbers of a cell's runs: measured ones from 1, then the profiled one if there is one."""
    return (*range(1, repeats + 1), *([PROFILED_RUN] if profiled_steps else []))


def run_name(run: int) -> str:
    """A run's number as people read it; "profiled" for the profiled run."""
    return "profiled" if run == PROFILED_RUN else str(run)


def is_profiled(directory: Path) -> bool:
    """Whether the directory is that of a cell's profiled run."""
    return directory.resolve().name == f"run{PROFILED_RUN}"


def sweep_paths(results: Path, sweep: str) -> SweepPaths:
    """The paths of a sweep's plan, tables, figures and report."""
    return SweepPaths(results / "sweeps" / sweep)


def comparisons(results: Path, sweep: str = "*") -> list[Path]:
    """The directories of existing comparisons: all, or those of one sweep with another."""
    directory = results / "comparisons"
    directories = {*directory.glob(f"{sweep}_vs_*"), *directory.glob(f"*_vs_{sweep}")}
    return sorted(path for path in directories if path.is_dir())


def check_directory(results: Path, platform: str, digest: str) -> Path:
    """The directory of the check of a platform whose content has this digest."""
    return results / "checks" / platform / digest


def array_directory(results: Path, name: str) -> Path:
    """The directory of a job array: its script, and a copied script and a link for each run."""
    return results / "arrays" / name


def tokens(results: Path, data: Data) -> Path | None:
    """The record of a corpus's token array, ``tokens.json``; None for synthetic tokens."""
    return results / "data" / data.name / "tokens.json" if data.kind == "text" else None


def token_array(description: Path) -> Path:
    """The tokens themselves, which a ``tokens.json`` describes."""
    return description.with_name("tokens.bin")


def code_directory(results: Path) -> Path:
    """The directory of the code that this user's jobs run, a file for each version. It is not
    shared, because who can write it can have a job run as this user."""
    return results / "code" / str(os.getuid())


def nearest_existing(path: Path) -> Path:
    """The path, or the lowest of its parents that exists. ``Path.exists`` raises PermissionError
    below a directory that may not be looked into."""
    return next(candidate for candidate in (path, *path.parents) if os.access(candidate, os.F_OK))


def broken_link(path: Path) -> str | None:
    """Says, in a sentence, that a path leads over a link to what is not there; None if it does not.
    Such a path cannot be made: the link is in the way."""
    for candidate in (path, *path.parents):
        if os.access(candidate, os.F_OK):
            break
        with contextlib.suppress(PermissionError):
            if candidate.is_symlink():
                return (
                    f"{candidate} is a link to {candidate.readlink()}, which is not there: mount "
                    "or make that directory, or remove the link"
                )
    return None


def may_list(directory: Path) -> bool:
    """Whether a path is a directory that this user may list. ``Path.is_dir`` alone raises
    PermissionError below a directory that may not be looked into."""
    return os.access(directory, os.R_OK | os.X_OK) and directory.is_dir()


def unreadable_tokens(description: Path) -> str | None:
    """Says, in a sentence, which directory or file of a corpus's tokens is there and cannot be read
    by this user; None if there is none."""
    directory, there = description.parent, nearest_existing(description.parent)
    if there != directory:
        refused = None if os.access(there, os.X_OK) else there
    elif not may_list(directory):
        refused = directory
    else:
        files = (description, token_array(description))
        refused = next(
            (file for file in files if file.exists() and not os.access(file, os.R_OK)), None
        )
    if refused is None:
        return None
    return (
        f"{refused} cannot be read by you, and the tokens of the text {directory.name} are there. "
        "Have its owner, whom `ls -ld` names, let you read it, or use "
        "`--config results_directory=DIRECTORY`"
    )
