"""What must hold after a fault: nothing doubled, nothing orphaned, nothing lost, tables as ever."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import polars as pl

from tests.chaos import processes
from tests.chaos.site import Site
from tests.chaos.victim import Victim
from workflow_lib import table_files
from workflow_lib.records import tables
from workflow_lib.records.cell import Cell
from workflow_lib.records.cell_axes import IDENTITY
from workflow_lib.records.columns import Column
from workflow_lib.records.contract import STEPS
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import EndedRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
)

#: columns of runs.parquet and cells.parquet that do not depend on when and where a run ran
_LOSSES = ("loss_first", "loss_last")
RUNS = (*(c.name for c in IDENTITY), "run", "gpu_name", "simulated", "outcome", *_LOSSES)
CELLS = (
    *(c.name for c in IDENTITY),
    *("gpu_name", "simulated", "repeats", "completed", "outcome", "outcomes"),
    *(f"{name}{suffix}" for name in _LOSSES for suffix in ("", "_low", "_high")),
)
#: which nodes a run gets is Slurm's to choose
GPUS = ("cell", "run", "gpu", "airflow", "simulated")
_STEPS = ("step", "phase", "loss", "tokens")
_CSV = (
    ("steps", re.compile(r"rank\d+\.csv"), STEPS),
    ("telemetry", re.compile(r".*-counters\.csv"), GPU_COUNTERS),
    ("telemetry", re.compile(r".*-power\.csv"), POWER_SAMPLES),
    ("telemetry", re.compile(r".*-events\.csv"), GPU_EVENTS),
    ("telemetry", re.compile(r".*-host\.csv"), HOST_SAMPLES),
    ("telemetry", re.compile(r".*\.csv"), GPU_SAMPLES),
)


# ---------------------------------------------------------------------- nothing twice, no orphans


def doubled(victim: Victim, trainings: int) -> Iterable[str]:
    """What says that a run ran twice: jobs at the same time, or too many whole trainings."""
    allocations = list(_allocations(victim.site, victim.jobs()))
    for (job, began, ended), (other, other_began, other_ended) in itertools.combinations(
        allocations, 2
    ):
        # sacct tells whole seconds.
        if min(ended, other_ended) - max(began, other_began) > 1:
            yield f"jobs {job} and {other} ran at the same time"
    whole = _whole_trainings(victim.paths)
    if len(whole) > trainings:
        yield f"trained to the end {len(whole)} times (jobs {', '.join(whole)}), not {trainings}"
    written = {
        path.parent.name: read_record(path, EndedRecord).job_id
        for path in (victim.paths.ended, *victim.paths.attempts.glob("*/ended.json"))
        if path.exists() and path.name not in victim.damaged
    }
    unknown = set(written.values()) - set(victim.jobs())
    if unknown:
        yield f"results of jobs that nobody submitted for it: {', '.join(sorted(unknown))}"


def _allocations(site: Site, jobs: Sequence[str]) -> Iterable[tuple[str, float, float]]:
    """When each job had its nodes, each start of a requeued one by itself."""
    if not jobs:
        return
    answer = site.cluster.run(
        *("sacct", "-X", "-D", "-n", "-P", "-j", ",".join(jobs), "--format=JobIDRaw,Start,End")
    )
    for line in answer.stdout.splitlines():
        job, *times = line.split("|")
        try:
            began, ended = (datetime.datetime.fromisoformat(each).timestamp() for each in times)
        except ValueError:
            continue  # it never began, or has not ended
        yield job, began, ended


def _whole_trainings(paths: RunPaths) -> list[str]:
    """The jobs in which every rank of the stand-in came to its end, as often as all did."""
    ledger = paths.directory / ".trained"
    lines = [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []
    ended = Counter((job, int(rank)) for what, job, rank, _ in lines if what == "ended")
    ranks = range(read_record(paths.cell, Cell).degrees.world_size)
    jobs = sorted({job for job, _ in ended})
    return [job for job in jobs for _ in range(min(ended[job, rank] for rank in ranks))]


def orphans(site: Site, own: Sequence[str]) -> Iterable[str]:
    """Jobs of the site that are still there, and processes of them."""
    queued = site.cluster.run("squeue", "-h", "-o", "%A %T").stdout.splitlines()
    for line in queued:
        job, state = line.split()
        if job in own and state != "COMPLETED":
            yield f"job {job} is still {state}"
    for each in processes.all_processes():
        said = " ".join(each.arguments)
        part_of = processes.job_of(each, site.cluster.conf)
        if part_of is not None and part_of in own:
            yield f"process {each.pid} of job {part_of} still runs: {said[:100]}"
        if "workflow_lib.launch" in said and site.directory in (each.directory, *_paths(each)):
            yield f"process {each.pid} still waits: {said[-200:]}"


def _paths(process: processes.Process) -> Iterable[Path]:
    """Directories that its arguments lie in."""
    for argument in process.arguments:
        if argument.startswith("/"):
            yield from Path(argument).parents


# ---------------------------------------------------------------------- nothing lost


def lost(victim: Victim) -> Iterable[str]:
    """Measurements from before the fault that are no longer where an attempt keeps them."""
    attempts = [victim.paths.directory, *victim.paths.attempts.glob("*")]
    for name, text in victim.measured.items():
        kept = [each / name for each in attempts if (each / name).exists()]
        if not any(path.read_bytes().startswith(text) for path in kept):
            yield f"{name}, {len(text)} bytes of it, is in no attempt"


def unreadable(directory: Path, damaged: Collection[str] = ()) -> Iterable[str]:
    """Files of a run or of an attempt that cannot be read, but for a torn last line, and for what
    was ``damaged`` on purpose.
    """
    for attempt in (directory, *directory.glob("attempts/*")):
        for path in (*attempt.glob("*.json"), *attempt.glob("*/rank*.json")):
            if attempt != directory and path.name in damaged:
                continue
            try:
                json.loads(path.read_bytes())
            except ValueError as error:
                yield f"{path}: {error}"
        for folder, pattern, columns in _CSV:
            for path in (attempt / folder).glob("*.csv"):
                first = next(p for f, p, _ in _CSV if f == folder and p.fullmatch(path.name))
                if first is pattern:
                    yield from _bad_rows(path, [c.name for c in columns], columns)


def _bad_rows(path: Path, names: list[str], columns: Sequence[Column]) -> Iterable[str]:
    text = path.read_bytes().decode(errors="replace")
    lines = text[: text.rfind("\n") + 1].splitlines()
    if lines and lines[0].split(",") != names:
        yield f"{path}:1: not the header of such a file"
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split(",")
        numbers = [f for f, c in zip(fields, columns, strict=False) if f and c.type is not str]
        try:
            fine = len(fields) == len(names) and all(math.isfinite(float(f)) for f in numbers)
        except ValueError:
            fine = False
        if not fine:
            yield f"{path}:{number}: {line!r}"


# ---------------------------------------------------------------------- tables


def differences(site: Site, reference: Site) -> Iterable[str]:
    """Where tables and steps differ from those of the same sweep without faults, run once."""
    for name, columns in (("runs", RUNS), ("gpus", GPUS)):
        yield from _compare(
            site, name, _table(site, name, columns), _table(reference, name, columns)
        )
    yield from _compare_cells(site, reference)
    for path in sorted(site.results.glob("cells/*/*/*/run*/steps/rank*.csv")):
        run = path.parents[1]
        peer = reference.results / run.with_name("run1").relative_to(site.results)
        if _steps(path) != _steps(peer / "steps" / path.name):
            yield f"{path} differs from the run without faults"


def _table(site: Site, name: str, columns: Sequence[str]) -> pl.DataFrame:
    kinds = {"runs": tables.RUNS, "gpus": tables.GPUS, "cells": tables.CELLS}
    return table_files.read_table(site.view / f"{name}.parquet", kinds[name]).select(columns)


def _compare(site: Site, name: str, here: pl.DataFrame, there: pl.DataFrame) -> Iterable[str]:
    """Each repeat must be as the reference's only one."""
    wanted = pl.DataFrame({"run": range(1, site.repeats + 1)}, schema={"run": pl.Int64})
    expected = there.drop("run").join(wanted, how="cross").select(here.columns)
    order = [column for column in ("cell", "run", "gpu") if column in here.columns]
    if here.height != expected.height:
        yield f"{name}.parquet has {here.height} rows, expected {expected.height}"
        return
    for column in here.columns:
        if not here.sort(order)[column].equals(expected.sort(order)[column]):
            yield f"{name}.parquet differs in {column}"


def _compare_cells(site: Site, reference: Site) -> Iterable[str]:
    """Cells also count their runs."""
    here = _table(site, "cells", CELLS).sort("cell")
    there = _table(reference, "cells", CELLS).sort("cell")
    counted = ("repeats", "completed", "outcomes")
    rest = [column for column in CELLS if column not in counted]
    if not here.select(rest).equals(there.select(rest)):
        yield "cells.parquet differs"
    expected = (site.repeats, site.repeats, f"completed {site.repeats}")
    for row in here.select(counted).iter_rows():
        if row != expected:
            yield f"cells.parquet counts {row}, expected {expected}"


def _steps(path: Path) -> list[list[str]]:
    text = path.read_text()
    names, *rows = [line.split(",") for line in text[: text.rfind("\n") + 1].splitlines()]
    return [[row[names.index(name)] for name in _STEPS] for row in rows]
