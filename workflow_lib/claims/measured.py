"""Reads the tables of all sweeps by which claims are judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workflow_lib.comparison.sensors import Errors
from workflow_lib.comparison.sides import Side, of_gpus, read_side
from workflow_lib.records.measures import PROFILED
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import GPUS, OVERHEAD
from workflow_lib.report.figures.cell_names import Row, completed_runs
from workflow_lib.table_files import read_table


@dataclass(frozen=True)
class Measured:
    """Cells and runs of several sweeps; a cell that is in several sweeps occurs once."""

    side: Side
    #: (cell, run) → rows of GPUS
    gpus: Mapping[tuple[str, int], Sequence[Row]] = field(default_factory=dict)
    #: cell → rows of OVERHEAD
    overhead: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    #: cell → the names of its sweeps
    sweeps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: sweep → its directory
    directories: Mapping[str, Path] = field(default_factory=dict)

    def completed(self, cell: Row) -> list[Row]:
        """A cell's completed runs, by number."""
        return completed_runs(self.side.runs_of(cell))


def read(directories: Iterable[Path], errors: Errors | None = None) -> list[Measured]:
    """Read the tables of sweeps from their directories; ``errors`` are what meters of the site
    showed of sensors of power.

    If two sweeps have different runs under one cell and number, that cell was measured twice, in
    two results directories. Such sweeps are returned apart, so that no contrast mixes their runs.
    All others are returned together. Raises FileNotFoundError if a table is missing; RecordError if
    one was written by another version, or if two sweeps have one name.
    """
    named: dict[str, Path] = {}
    groups: list[list[tuple[Path, Side]]] = []
    for directory in directories:
        side = read_side(directory, "measured", errors)
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
    return [_together(group, errors or {}) for group in groups]


def _measured_again(side: Side, other: Side) -> bool:
    """Whether two sweeps have different completed runs under one cell and number."""
    began = {(r["cell"], r["run"]): r["started_unix_s"] for r in other.runs if _done(r)}
    return any(
        began.get((run["cell"], run["run"]), run["started_unix_s"]) != run["started_unix_s"]
        for run in side.runs
        if _done(run)
    )


def _together(sweeps_read: Iterable[tuple[Path, Side]], errors: Errors) -> Measured:
    """The tables of sweeps of one results directory, as one."""
    cells: dict[str, Row] = {}
    runs: dict[tuple[str, int], Row] = {}
    gpus: dict[tuple[str, int], list[Row]] = {}
    overhead: dict[str, list[Row]] = {}
    sweeps: dict[str, list[str]] = {}
    directories: dict[str, Path] = {}
    for directory, side in sweeps_read:
        directories[side.sweep] = directory
        mine = _add_runs(runs, side)
        for cell in side.cells:
            sweeps.setdefault(cell["cell"], []).append(side.sweep)
            cells[cell["cell"]] = _fuller(cell, cells.get(cell["cell"]))
        paths = SweepPaths(directory)
        for row in read_table(paths.table("gpus"), GPUS).to_dicts():
            if (key := (row["cell"], row["run"])) in mine:
                gpus.setdefault(key, []).append(row)
        if paths.table("overhead").is_file():
            for row in read_table(paths.table("overhead"), OVERHEAD).to_dicts():
                if (row["cell"], row["run"]) in mine:
                    overhead.setdefault(row["cell"], []).append(row)
    side = Side(
        "measured",
        "all",
        tuple(cells.values()),
        tuple(runs.values()),
        errors=errors,
        **of_gpus(row for rows in gpus.values() for row in rows),
    )
    return Measured(side, gpus, overhead, sweeps, directories)


def _fuller(cell: Row, earlier: Row | None) -> Row:
    """A cell's row of the sweep with more completed runs; another may have its profiled run."""
    if earlier is None:
        return cell
    full, other = (cell, earlier) if cell["completed"] > earlier["completed"] else (earlier, cell)
    return {**full, **{name: other[name] for name in PROFILED if full[name] is None}}


def _add_runs(runs: dict[tuple[str, int], Row], side: Side) -> set[tuple[str, int]]:
    """Add a sweep's runs to those so far; return the keys of those that are taken from it."""
    mine = set()
    for run in side.runs:
        key = run["cell"], run["run"]
        if key not in runs or not _done(runs[key]):
            runs[key] = run
            mine.add(key)
    return mine


def _done(run: Row) -> bool:
    return bool(run["outcome"] == Outcome.COMPLETED.value)
