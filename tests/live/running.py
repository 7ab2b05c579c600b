"""A results directory with a run under way, one that failed, and one that waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.analysis.synthetic_run import START, Run, cell
from workflow_lib import results
from workflow_lib.records.outcomes import JobRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

CELL = cell().id
#: when the synthetic run's last sample was taken
NOW = START + 50
CAUSE = 'rank 3 on n2: "NCCL" said [red]C:\\temp[/red]\nand died'


def paths_of(root: Path, run: int) -> RunPaths:
    return RunPaths(results.run_directory(root, CELL, run))


def write(root: Path, run: Run | None = None) -> RunPaths:
    """Run 1 trains since 90 s before START + 50, run 2 failed 30 s ago, run 3 is queued."""
    paths = (run or Run()).write(paths_of(root, 1).directory)
    paths.outcome.unlink()
    queue(paths)
    write_json(paths.environment, {"recorded_unix_s": NOW - 90})
    failed = paths_of(root, 2)
    write_json(failed.cell, replace(cell(), id=CELL))
    ended = OutcomeRecord(
        Outcome.COMMUNICATION_TIMEOUT, CAUSE, "4712", ("n2",), NOW - 90, NOW - 30, "FAILED", False
    )
    write_json(failed.failure, ended)
    waiting = paths_of(root, 3)
    write_json(waiting.cell, replace(cell(), id=CELL))
    queue(waiting)
    return paths


def queue(paths: RunPaths) -> None:
    write_json(paths.job, JobRecord("slurm", "4711", NOW - 7200, "ada (process 1)"))
