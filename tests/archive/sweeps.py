"""A made-up sweep, from its configuration on: runs that end in every way, and what they come to."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.analysis.synthetic_run import Run
from tests.analysis.traces.kineto import GEMM, collective, kernel, write
from tests.conftest import ROOT
from tests.made_sweeps import made_sweep
from workflow_lib.archive.contents import make_products
from workflow_lib.cells import Sweep, expand_study
from workflow_lib.records.cell import Cell
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json
from workflow_lib.results import PROFILED_RUN, run_directory
from workflow_lib.study import load_study

NAME = "made-up"
SWEEP = made_sweep(
    "Two GPUs that never were: “all” of it, & <more>",
    {"measured_steps": 2, "idle_baseline_s": 10, "profiled_steps": 1},
    {"global_batch_size": 4, "micro_batch_size": 1},
    repeats=2,
    matrix=[
        {"models": "gpt3-tiny", "dp": 2, "zero_stage": [1, 2, 3]},
        {"models": "gpt3-tiny", "dp": 2, "recomputation": "full"},
        {"models": "gpt3-tiny", "dp": 1, "pp": 2},
        # A dense model has no experts to divide.
        {"models": "gpt3-tiny", "dp": 2, "ep": 2},
    ],
)


@dataclass(frozen=True)
class Study:
    """A checkout's directories with one sweep."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "config"

    @property
    def results(self) -> Path:
        return self.directory / "results"

    @property
    def sweep(self) -> Sweep:
        return expand_study(load_study(self.config))[NAME]

    def run(self, cell: int, number: int) -> RunPaths:
        """A run of the sweep's n-th cell."""
        return RunPaths(run_directory(self.results, self.sweep.cells[cell].cell.id, number))


def write_study(directory: Path) -> Study:
    """Write the configuration, without any run."""
    study = Study(directory)
    for kind, name in (("models", "gpt3-tiny"), ("platforms", "local"), ("data", "synthetic")):
        (study.config / kind).mkdir(parents=True)
        shutil.copy(ROOT / "config" / kind / f"{name}.yaml", study.config / kind)
    (study.config / "sweeps").mkdir()
    (study.config / "sweeps" / f"{NAME}.yaml").write_text(yaml.safe_dump(SWEEP), encoding="utf-8")
    return study


def write_runs(study: Study) -> None:
    """Write raw files of runs that completed, ran out of memory, failed, and were watched badly;
    some cells have no run.
    """
    cells = [planned.cell for planned in study.sweep.cells]
    for number in (1, 2):
        write_run(study.run(0, number), cells[0], Outcome.COMPLETED)
    write_run(study.run(1, 1), cells[1], Outcome.OUT_OF_MEMORY)
    write_run(study.run(2, 1), cells[2], Outcome.TIMEOUT)
    invalid = study.run(3, 1)
    write_run(invalid, cells[3], Outcome.TELEMETRY_INVALID)
    invalid.rank(1).write_text('{"rank": 1, "no', encoding="utf-8")  # torn
    _write_profiled(study.run(0, PROFILED_RUN), cells[0])


def finish(study: Study) -> None:
    """Make what the workflow makes of it."""
    make_products(study.sweep, study.results)


def write_run(paths: RunPaths, cell: Cell, outcome: Outcome) -> None:
    """Write a run's raw files."""
    tokens = cell.training.global_batch_size * cell.model.sequence_length // cell.degrees.dp
    Run(cell=cell, outcome=outcome, step_tokens=tokens).write(paths.directory)
    paths.script.write_text("#!/bin/sh\n", encoding="utf-8")
    paths.logs.mkdir()
    (paths.logs / "training.log").write_text("step 1\n", encoding="utf-8")
    (paths.directory / ".lock").touch()
    write_json(paths.environment, {"recorded_unix_s": 1_700_000_000, "node": "node1"})
    write_json(paths.attempts / "1" / "failure.json", {"of": "an earlier attempt"})


def _write_profiled(paths: RunPaths, cell: Cell) -> None:
    write_run(paths, cell, Outcome.COMPLETED)
    for rank, start in ((0, 20), (1, 60)):
        operator = kernel("aten::mm", 0, 1, cat="cpu_op")
        events = [operator, kernel(GEMM, 0, start), collective(start, 100, [0, 1])]
        write(paths.trace(rank), events)
