"""One side of a comparison: a sweep's tables, and its name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from workflow_lib.analysis.parquet_check import check_readable
from workflow_lib.comparison.sensors import Errors, Read, Sensor
from workflow_lib.records.measures import Measure
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import CELLS, GPUS, RUNS
from workflow_lib.report.figures.cell_names import Row, completed_runs, runs_by_cell
from workflow_lib.report.figures.environments import environments
from workflow_lib.table_files import read_table

#: the measure that one GPU alone decides
PEAK = "power_peak_w"
#: measure of tokens per joule of a phase → that of the phase's tokens per second and GPU
_OF_A_PHASE = {"decode_tokens_per_j": "decode_tokens_per_s_per_gpu"}
#: keys of environment.json that are different for every run
_OF_ONE_RUN = ("node", "job_id", "script_sha256", "recorded_unix_s")
#: columns of GPUS by which the errors of its sensor count
_POWERS = ("power_mean_w", PEAK)
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
    #: (cell, run) → UUID → column of GPUS → W, of GPUs with a sensor of power
    power_w: Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]] = field(
        default_factory=dict
    )
    #: UUID → what a meter of the site showed of its sensor
    errors: Errors = field(default_factory=dict)
    #: as report.environments; None if there are no raw files beside the tables
    environment: dict[str, Any] | None = None

    def runs_of(self, cell: Row) -> list[Row]:
        """The runs of a cell."""
        return self._by_cell.get(cell["cell"], [])

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

    def reads(self, measure: Measure, runs: Sequence[Row], end: str) -> list[Read] | None:
        """What the sensors of power read in runs for a measure of theirs, of side ``end`` (a or b);
        None if the power of a run is not known.

        The sensors of a run are not told from others' if the rows of its GPUs do not make up its
        power, and in a phase, of which only all GPUs together are known.
        """
        reads = []
        for run in runs:
            name, power_w, combine = _power(measure, run)
            if power_w is None:
                return None
            of_gpus = self.power_w.get((run["cell"], run["run"]), {})
            known = {Sensor(gpu): powers[name] for gpu, powers in of_gpus.items()}
            if measure.name in _OF_A_PHASE and len(known) == 1:
                known = dict.fromkeys(known, power_w)
            if known and math.isclose(combine(known.values()), power_w, rel_tol=1e-3):
                reads.append(Read(known, power_w))
                continue
            count = 1 if combine is max else run["gpus"]
            some = {Sensor(str(number), end): power_w / count for number in range(count)}
            reads.append(Read(some, power_w))
        return reads

    @cached_property
    def _by_cell(self) -> dict[str, list[Row]]:
        return runs_by_cell(self.runs)

    @property
    def platforms(self) -> list[str]:
        return sorted({cell["platform"] for cell in self.cells})

    @property
    def gpu_names(self) -> list[str]:
        return sorted({run["gpu_name"] for run in self.runs if run["gpu_name"]})


def _power(
    measure: Measure, run: Row
) -> tuple[str, float | None, Callable[[Iterable[float]], float]]:
    """The column of GPUS with the power behind a measure of a run; that power in W, of all GPUs or
    the peak's GPU, while its energy was taken; and how the GPUs' powers make it up."""
    if measure.name == PEAK:
        return measure.name, run[measure.name], max
    if rate := _OF_A_PHASE.get(measure.name):
        known = run[rate] and run[measure.name]
        power_w = run[rate] * run["gpus"] / run[measure.name] if known else None
        return "power_mean_w", power_w, math.fsum
    per_gpu_w = run["power_per_gpu_mean_w"]
    return "power_mean_w", None if per_gpu_w is None else per_gpu_w * run["gpus"], math.fsum


def emulated_sides(rows: Iterable[Row]) -> list[Row]:
    """Platform of each side of rows of COMPARISON or CLAIMS, and what is emulated there."""
    return [
        {"platform": row[f"platform_{end}"], "emulated": row[f"emulated_{end}"]}
        for row in rows
        for end in ("a", "b")
    ]


def read_sides(
    a: Path, b: Path, names: Sequence[str] | None = None, errors: Errors | None = None
) -> tuple[Side, Side]:
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
        tables.append(read_side(directory, letter, errors))
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
    sweeps = sorted(path.parent.name for path in sweep.parent.glob("*/cells.parquet"))
    return f"{sweep.parent} has {', '.join(sweeps) or 'none'}"


def read_side(directory: Path, name: str, errors: Errors | None = None) -> Side:
    """Read the tables of a sweep from its directory, without its environment; ``errors`` are what
    meters of the site showed.

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
        errors=errors or {},
        **of_gpus(read_table(paths.table("gpus"), GPUS).to_dicts()),
    )


def of_gpus(rows: Iterable[Row]) -> dict[str, Any]:
    """The fields of a side that come from rows of GPUS."""
    by_run: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_run.setdefault((row["cell"], row["run"]), []).append(row)
    known = {
        run: own for run, own in by_run.items() if None not in [row["gpu_uuid"] for row in own]
    }
    return {
        "gpus": {run: frozenset(row["gpu_uuid"] for row in own) for run, own in known.items()},
        "limits_w": {
            run: tuple(sorted(limits))
            for run, own in by_run.items()
            if (limits := [w for row in own if (w := row["power_limit_w"]) is not None])
        },
        "power_w": {
            run: {
                row["gpu_uuid"]: {name: row[name] for name in _POWERS}
                for row in own
                if None not in [row[name] for name in _POWERS]
            }
            for run, own in known.items()
        },
    }


def _names(a: Path, b: Path, cells: Sequence[Sequence[Row]]) -> list[str]:
    platforms = [{cell["platform"] for cell in of_side} for of_side in cells]
    if all(len(platform) == 1 for platform in platforms) and platforms[0] != platforms[1]:
        return [next(iter(platform)) for platform in platforms]
    directories = [directory.resolve().name for directory in (a, b)]
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
