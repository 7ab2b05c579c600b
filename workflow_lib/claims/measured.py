"""What was measured: the tables of all sweeps that claims are judged by, together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workflow_lib.analysis.tables import read_table
from workflow_lib.comparison.sides import Side, read_side
from workflow_lib.records import GPUS, OVERHEAD, Outcome, RecordError, SweepPaths
from workflow_lib.report.cells import Row, completed_runs


@dataclass(frozen=True)
class Measured:
    """Cells and runs of several sweeps; a cell that several of them show is there once."""

    side: Side
    #: rows of GPUS of each run (cell, number)
    gpus: Mapping[tuple[str, int], Sequence[Row]] = field(default_factory=dict)
    #: rows of OVERHEAD of each cell
    overhead: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    #: the names of the sweeps that show a cell
    sweeps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: the directory of each sweep
    directories: Mapping[str, Path] = field(default_factory=dict)

    def completed(self, cell: Row) -> list[Row]:
        """A cell's completed runs, by number."""
        return completed_runs(self.side.runs_of(cell))


def read(directories: Iterable[Path]) -> list[Measured]:
    """Read the tables of sweeps from their directories.

    Sweeps that have other runs under one cell and number measured that cell twice, in two results
    directories. They are apart, so that no contrast mixes runs of both; all others are together.
    Raises FileNotFoundError where a table is missing; RecordError where one is of another version,
    or where two sweeps have one name.
    """
    named: dict[str, Path] = {}
    groups: list[list[tuple[Path, Side]]] = []
    for directory in directories:
        side = read_side(directory, "measured")
        if side.sweep in named:
            raise RecordError(
                f"{named[side.sweep]} and {directory} are sweeps of one name: give one of them"
            )
        named[side.sweep] = directory
        for group in groups:
            if not any(_measured_again(side, other) for _, other in group):
                group.append((directory, side))
                break
        else:
            groups.append([(directory, side)])
    return [_together(group) for group in groups]


def _measured_again(side: Side, other: Side) -> bool:
    """Whether two sweeps have other completed runs under one cell and number."""
    began = {(r["cell"], r["run"]): r["started_unix_s"] for r in other.runs if _done(r)}
    return any(
        began.get((run["cell"], run["run"]), run["started_unix_s"]) != run["started_unix_s"]
        for run in side.runs
        if _done(run)
    )


def _together(sweeps_read: Iterable[tuple[Path, Side]]) -> Measured:
    """The tables of sweeps of one results directory, as one."""
    cells: dict[str, Row] = {}
    runs: dict[tuple[str, int], Row] = {}
    of_gpus: dict[tuple[str, int], frozenset[str]] = {}
    limits: dict[tuple[str, int], tuple[float, ...]] = {}
    gpus: dict[tuple[str, int], list[Row]] = {}
    overhead: dict[str, list[Row]] = {}
    sweeps: dict[str, list[str]] = {}
    found: dict[str, Path] = {}
    for directory, side in sweeps_read:
        found[side.sweep] = directory
        mine = _add_runs(runs, side)
        for cell in side.cells:
            sweeps.setdefault(cell["cell"], []).append(side.sweep)
            known = cells.get(cell["cell"])
            if known is None or cell["completed"] > known["completed"]:
                cells[cell["cell"]] = cell
        of_gpus |= {run: side.gpus[run] for run in mine & side.gpus.keys()}
        limits |= {run: side.limits_w[run] for run in mine & side.limits_w.keys()}
        paths = SweepPaths(directory)
        _add_gpus(gpus, read_table(paths.table("gpus"), GPUS).to_dicts(), mine)
        if paths.table("overhead").is_file():
            for row in read_table(paths.table("overhead"), OVERHEAD).to_dicts():
                if (row["cell"], row["run"]) in mine:
                    overhead.setdefault(row["cell"], []).append(row)
    side = Side("measured", "all", tuple(cells.values()), tuple(runs.values()), of_gpus, limits)
    return Measured(side, gpus, overhead, sweeps, found)


def _add_runs(runs: dict[tuple[str, int], Row], side: Side) -> set[tuple[str, int]]:
    """Add a sweep's runs to those that are known; returns which of them are from it."""
    mine = set()
    for run in side.runs:
        key = run["cell"], run["run"]
        known = runs.get(key)
        if known is None or not _done(known):
            runs[key] = run
            mine.add(key)
    return mine


def _done(run: Row) -> bool:
    return bool(run["outcome"] == Outcome.COMPLETED.value)


def _add_gpus(
    gpus: dict[tuple[str, int], list[Row]], rows: Sequence[Row], mine: set[tuple[str, int]]
) -> None:
    for row in rows:
        key = row["cell"], row["run"]
        if key in mine:
            gpus.setdefault(key, []).append(row)
