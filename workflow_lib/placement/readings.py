"""What each GPU did in each completed run, with the stage that it had: what placement rests on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.degrees import coordinates
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths, SweepPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import GPUS, NODES, RUNS
from workflow_lib.results import run_directory
from workflow_lib.table_files import read_table

#: of the time; a GPU that was at its power cap for less did not compute at the clock of the cap
_AT_CAP = 0.5
_NEEDED = ("gpu_uuid", "sm_clock_mean_mhz", "power_mean_w", "temperature_mean_c")

#: of a table, by column
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Reading:
    """One GPU over the measured steps of one run."""

    cell: str
    run: int
    started_unix_s: float
    node: str
    gpu: int
    uuid: str
    stage: int
    sm_clock_mhz: float
    #: mean SM clock while the power cap holds it, over the GPU's highest; None where the GPU was
    #: there for less than half of the time
    capped_clock_share: float | None
    power_w: float
    temperature_c: float
    #: air at the node's inlet; None where the node has no sensor
    inlet_c: float | None
    #: that was in force; None where it is not known
    power_limit_w: float | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The run."""
        return self.cell, self.run


@dataclass(frozen=True)
class Run:
    """A completed run as a whole."""

    cell: Cell
    run: int
    started_unix_s: float
    step_time_s: float
    simulated: bool

    @property
    def key(self) -> tuple[str, int]:
        """The run."""
        return self.cell.id, self.run


@dataclass(frozen=True)
class Measured:
    """A sweep's completed runs, and the readings of those that have them whole."""

    sweep: str
    runs: Sequence[Run]
    readings: Sequence[Reading]
    #: run → why its GPUs' readings are not used
    left_out: Mapping[tuple[str, int], str]

    @property
    def at_cap(self) -> bool:
        """Whether clocks can be compared at one power: every GPU was at its cap in every run."""
        return all(reading.capped_clock_share is not None for reading in self.readings)

    def clock(self, reading: Reading) -> float:
        """The clock that GPUs are compared by: at the power cap if :attr:`at_cap`, as a share of
        the highest; else the mean, in MHz."""
        share = reading.capped_clock_share
        return share if self.at_cap and share is not None else reading.sm_clock_mhz

    @property
    def uuids(self) -> dict[tuple[str, int], str]:
        """The GPU at each place (node, index). Raises RecordError where two were at one place."""
        uuids: dict[tuple[str, int], str] = {}
        for reading in self.readings:
            known = uuids.setdefault((reading.node, reading.gpu), reading.uuid)
            if known != reading.uuid:
                raise RecordError(
                    f"{self.sweep}: GPU {reading.gpu} of {reading.node} was {known} in one run and "
                    f"{reading.uuid} in another: runs of one characterisation need the same GPUs"
                )
        return uuids

    def of_nodes(self) -> dict[tuple[str, ...], Measured]:
        """Apart by the nodes that ran together: within a run alone GPUs can be compared."""
        nodes: dict[tuple[str, int], set[str]] = {}
        for reading in self.readings:
            nodes.setdefault(reading.key, set()).add(reading.node)
        names = {run: tuple(sorted(its)) for run, its in nodes.items()}
        return {
            group: Measured(
                self.sweep,
                [run for run in self.runs if names.get(run.key) == group],
                [reading for reading in self.readings if names[reading.key] == group],
                {},
            )
            for group in sorted(set(names.values()))
        }

    def with_limits_of(self, cell: Cell) -> Measured:
        """The runs whose GPUs were set the limits that this cell sets: under others, GPUs differ by
        other amounts, and under locked clocks not at all."""
        runs = [run for run in self.runs if _limits(run.cell) == _limits(cell)]
        keys = {run.key for run in runs}
        readings = [reading for reading in self.readings if reading.key in keys]
        return Measured(self.sweep, runs, readings, self.left_out)

    def runs_of(self, cell: str) -> list[Run]:
        """A cell's completed runs."""
        return [run for run in self.runs if run.cell.id == cell]


def order_of(cell: Cell) -> tuple[int, ...]:
    """The node's GPU of each local rank."""
    return cell.degrees.gpu_order or tuple(range(cell.ranks_per_node))


def _limits(cell: Cell) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return cell.training.power_limits_w, cell.training.clock_limits_mhz


def place_name(place: tuple[str, int]) -> str:
    """A GPU, by its node and index, as people call it."""
    return f"{place[0]} GPU {place[1]}"


def without_order(cell: Cell) -> Cell:
    """The cell with GPUs in their own order, and without its name: what runs in other orders of
    one characterisation have in common."""
    return dataclasses.replace(
        cell, id="a/b/c", degrees=dataclasses.replace(cell.degrees, gpu_order=(), gpu_uuids=())
    )


def read(directory: Path) -> Measured:
    """Read what a sweep's directory, ``results/sweeps/<sweep>``, and its runs hold.

    Raises RecordError, and FileNotFoundError where a run's file is missing.
    """
    paths, results = SweepPaths(directory), directory.resolve().parent.parent
    if not paths.table("runs").is_file():
        raise RecordError(
            f"{directory} has no runs.parquet: run the sweep first, with the profile of its "
            "platform, as in `snakemake --profile profiles/slurm_PLATFORM --config "
            "'sweeps=[slots]'`, or name the directory of another"
        )
    gpus: dict[tuple[str, int], list[Row]] = {}
    for row in read_table(paths.table("gpus"), GPUS).to_dicts():
        gpus.setdefault((row["cell"], row["run"]), []).append(row)
    inlets = {
        (row["cell"], row["run"], row["node"]): row["inlet_temperature_mean_c"]
        for row in read_table(paths.table("nodes"), NODES).to_dicts()
    }
    runs: list[Run] = []
    readings: list[Reading] = []
    left_out = {}
    for row in read_table(paths.table("runs"), RUNS).to_dicts():
        if row["outcome"] != Outcome.COMPLETED.value or row["step_time_s"] is None:
            continue
        at = RunPaths(run_directory(results, row["cell"], row["run"]))
        run = Run(
            cell=read_record(at.cell, Cell),
            run=row["run"],
            started_unix_s=row["started_unix_s"],
            step_time_s=row["step_time_s"],
            simulated=row["simulated"] is True,
        )
        runs.append(run)
        of_run = _readings(run, at, gpus.get(run.key, []), inlets)
        if isinstance(of_run, str):
            left_out[run.key] = of_run
        else:
            readings += of_run
    return Measured(directory.name, runs, readings, left_out)


def _readings(
    run: Run, at: RunPaths, rows: Sequence[Row], inlets: Mapping[tuple[str, int, str], float | None]
) -> list[Reading] | str:
    """A reading a rank, or why the run has none."""
    by_uuid = {row["gpu_uuid"]: row for row in rows if row["gpu_uuid"] is not None}
    by_place = {(row["node"], row["gpu"]): row for row in rows}
    order = order_of(run.cell)
    readings = []
    for number in range(run.cell.degrees.world_size):
        rank = read_record(at.rank(number), RankRecord)
        gpu = rank.gpu
        if gpu is None:
            if not run.simulated:
                return "it trained on CPUs"
            gpu = order[number % len(order)]
        row = by_uuid.get(rank.gpu_uuid) or by_place.get((rank.node, gpu))
        if row is None:
            return f"GPU {gpu} of {rank.node} has no readings"
        if missing := [name for name in _NEEDED if row[name] is None]:
            return f"GPU {gpu} of {rank.node} has no {missing[0]}"
        capped = (row["throttle_power_share"] or 0) >= _AT_CAP
        readings.append(
            Reading(
                cell=run.cell.id,
                run=run.run,
                started_unix_s=run.started_unix_s,
                node=rank.node,
                gpu=row["gpu"],
                uuid=row["gpu_uuid"],
                stage=coordinates(number, run.cell.degrees).pp,
                sm_clock_mhz=row["sm_clock_mean_mhz"],
                capped_clock_share=row["capped_clock_share"] if capped else None,
                power_w=row["power_mean_w"],
                temperature_c=row["temperature_mean_c"],
                inlet_c=inlets.get((run.cell.id, run.run, rank.node)),
                power_limit_w=row["power_limit_w"],
            )
        )
    return readings
