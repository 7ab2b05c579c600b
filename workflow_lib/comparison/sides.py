"""One side of a comparison: a sweep's tables, and its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from workflow_lib.analysis.parquet_check import check_readable
from workflow_lib.analysis.tables import read_table
from workflow_lib.records import CELLS, GPUS, RUNS, RecordError, SweepPaths
from workflow_lib.report.cells import Row, completed_runs, runs_by_cell
from workflow_lib.report.environments import environments

#: keys of environment.json that are different for every run
_OF_ONE_RUN = ("node", "job_id", "script_sha256", "recorded_unix_s")
_OF_ONE_JOB = "environment_variables.SLURM_"


@dataclass(frozen=True)
class Side:
    """A sweep's cells and runs."""

    #: the side's name in sentences
    name: str
    #: the name of the sweep's directory
    sweep: str
    cells: tuple[Row, ...]
    runs: tuple[Row, ...]
    #: (cell, run) → the UUIDs of its GPUs; empty if one of them is not known
    gpus: Mapping[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    #: (cell, run) → the enforced power limits of its GPUs, of those that are known
    limits_w: Mapping[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)
    #: as report.environments; None if there are no raw files beside the tables
    environment: dict[str, Any] | None = None

    def runs_of(self, cell: Row) -> list[Row]:
        """The runs of a cell."""
        return self._by_cell.get(cell["cell"], [])

    def gpus_of(self, cell: Row) -> frozenset[str]:
        """The UUIDs of the GPUs of a cell's completed runs; empty unless all ran on
        the same GPUs."""
        sets = {
            self.gpus.get((run["cell"], run["run"]), frozenset())
            for run in completed_runs(self.runs_of(cell))
        }
        return sets.pop() if len(sets) == 1 else frozenset()

    def limits_of(self, cell: Row) -> str:
        """The power limits of the GPUs of a cell's completed runs, with the number of GPUs of each:
        "400 W (1), 700 W (31)"; "" if none is known."""
        counts: Counter[float] = Counter()
        for run in completed_runs(self.runs_of(cell)):
            counts |= Counter(self.limits_w.get((run["cell"], run["run"]), ()))
        if len(counts) == 1:
            return f"{next(iter(counts)):g} W"
        return ", ".join(f"{limit:g} W ({counts[limit]})" for limit in sorted(counts))

    def gpus_of_runs(self, runs: Sequence[Row]) -> list[frozenset[str]]:
        """The UUIDs of each run's GPUs; empty for a run with a GPU that is not known."""
        return [self.gpus.get((run["cell"], run["run"]), frozenset()) for run in runs]

    @cached_property
    def _by_cell(self) -> dict[str, list[Row]]:
        return runs_by_cell(self.runs)

    @property
    def platforms(self) -> list[str]:
        return sorted({cell["platform"] for cell in self.cells})

    @property
    def gpu_names(self) -> list[str]:
        return sorted({run["gpu_name"] for run in self.runs if run["gpu_name"]})


def emulated_sides(rows: Iterable[Row]) -> list[Row]:
    """Platform of each side of rows of COMPARISON or CLAIMS, and what is emulated there."""
    return [
        {"platform": row[f"platform_{end}"], "emulated": row[f"emulated_{end}"]}
        for row in rows
        for end in ("a", "b")
    ]


def read_sides(a: Path, b: Path, names: Sequence[str] | None = None) -> tuple[Side, Side]:
    """Read the tables of two sweeps from their directories.

    The sides are named by ``names``; else by their platforms if these differ, else by their
    directories if those differ, else A and B. Raises FileNotFoundError if a table is missing.
    Raises RecordError if one was written by another version, if both are one directory, or if the
    names are equal or empty.
    """
    if a.resolve() == b.resolve():
        raise RecordError(f"A and B are both {a}: name two sweeps")
    tables = []
    for letter, directory in (("A", a), ("B", b)):
        if not SweepPaths(directory).table("cells").is_file():
            raise FileNotFoundError(
                f"{letter} is {directory}, which has no cells.parquet: expected the directory of a "
                f"sweep that was run, as results/sweeps/<sweep>; {_run_beside(directory)}"
            )
        tables.append(read_side(directory, letter))
    chosen = list(names) if names else _names(a, b, [side.cells for side in tables])
    if len(set(chosen)) != 2 or "" in chosen:
        raise RecordError(f"the names {chosen} do not tell two sides apart: give two")
    one, other = (
        replace(side, name=name, environment=_environment(directory, side.runs))
        for side, name, directory in zip(tables, chosen, (a, b), strict=True)
    )
    return one, other


def _run_beside(sweep: Path) -> str:
    """The sweeps with tables in the directory where ``sweep`` was looked for."""
    found = sorted(path.parent.name for path in sweep.parent.glob("*/cells.parquet"))
    return f"{sweep.parent} has {', '.join(found) or 'none'}"


def read_side(directory: Path, name: str) -> Side:
    """Read the tables of a sweep from its directory, without its environment.

    Raises FileNotFoundError if one is missing, and RecordError if one was written by another
    version.
    """
    paths = SweepPaths(directory)
    # The tables may come from others. ``overhead`` is checked because claims read it later.
    read = map(paths.table, ("cells", "runs", "gpus", "overhead"))
    check_readable(path for path in read if path.is_file())
    return Side(
        name,
        directory.resolve().name,
        tuple(read_table(paths.table("cells"), CELLS).to_dicts()),
        tuple(read_table(paths.table("runs"), RUNS).to_dicts()),
        _gpus(paths.table("gpus")),
        _limits(paths.table("gpus")),
    )


def _limits(path: Path) -> dict[tuple[str, int], tuple[float, ...]]:
    """(cell, run) → the enforced power limits of its GPUs, of those that report one."""
    known = read_table(path, GPUS).drop_nulls("power_limit_w")
    by_run = known.group_by("cell", "run").agg("power_limit_w")
    return {(cell, run): tuple(sorted(limits)) for cell, run, limits in by_run.iter_rows()}


def _gpus(path: Path) -> dict[tuple[str, int], frozenset[str]]:
    """(cell, run) → the UUIDs of its GPUs, of runs whose GPUs are all known."""
    by_run = read_table(path, GPUS).group_by("cell", "run").agg("gpu_uuid")
    return {
        (cell, run): frozenset(uuids)
        for cell, run, uuids in by_run.iter_rows()
        if None not in uuids
    }


def _names(a: Path, b: Path, cells: Sequence[Sequence[Row]]) -> list[str]:
    platforms = [{cell["platform"] for cell in of_side} for of_side in cells]
    if all(len(each) == 1 for each in platforms) and platforms[0] != platforms[1]:
        return [next(iter(each)) for each in platforms]
    directories = [each.resolve().name for each in (a, b)]
    return directories if directories[0] != directories[1] else ["A", "B"]


def _environment(directory: Path, runs: Sequence[Row]) -> dict[str, Any] | None:
    results = directory.resolve().parent.parent
    return environments(runs, results) if (results / "cells").is_dir() else None


def changed_environment(a: Side, b: Side) -> list[tuple[str, str, str]] | None:
    """Keys of environment.json whose values differ between the sides: key, A's and B's values.

    None if a side recorded none, because then nothing is known. Keys that are different for every
    run are left out; the GPUs' names are added from the tables.
    """
    if not all(side.environment and side.environment["rows"] for side in (a, b)):
        return None
    known = [_values(side) for side in (a, b)]
    return [
        (key, known[0].get(key, "not recorded"), known[1].get(key, "not recorded"))
        for key in sorted(known[0].keys() | known[1].keys())
        if known[0].get(key) != known[1].get(key)
    ]


def _values(side: Side) -> dict[str, str]:
    """The distinct values of each key as one text, in an order that does not depend on counts."""
    values = {"gpu_name": ", ".join(side.gpu_names)} if side.gpu_names else {}
    for key, ranked, more in side.environment["rows"] if side.environment else ():
        if key not in _OF_ONE_RUN and not key.startswith(_OF_ONE_JOB):
            texts = sorted(value for value, _ in ranked)
            values[key] = "; ".join(texts) + (f"; and {more} more" if more else "")
    return values
