"""How much later training starts through the workflow than after a bare ``sbatch`` of its script.

From the moment of the command to the start of the first rank, in interleaved pairs on the throwaway
Slurm (``make slurm-cluster`` first). The claim: at most 1 s more.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.slurm import study
from workflow_lib import cells
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.paths import RunPaths
from workflow_lib.study import load_study

PAIRS = 5


def render(directory: Path) -> RunPaths:
    """A fresh run of one tiny cell."""
    config, results = directory / "config", directory / "results"
    study.write(config)
    planned = cells.expand_study(load_study(config))["tiny-mi250"].cells[0]
    places = ("--config", config, "--results", results, "--root", ROOT)
    python("render", *places, "--cell", planned.cell.id, "--run", "1")
    return RunPaths(results / "cells" / planned.cell.id / "run1")


def python(*arguments: object) -> None:
    """Run a command of the launch package."""
    subprocess.run(
        [sys.executable, "-m", "workflow_lib.launch", *map(str, arguments)],
        cwd=ROOT,
        check=True,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TRIPTYCH_ASK_SCHEDULER_EVERY_S": "2"},
    )


def first_rank_started(paths: RunPaths) -> float:
    """Unix time at which the first rank's process started."""
    ranks = [read_record(path, RankRecord) for path in paths.steps.glob("rank*.json")]
    return min(rank.started_unix_s for rank in ranks)


def bare(paths: RunPaths) -> float:
    """Seconds from a bare sbatch to the first rank."""
    started = time.time()
    subprocess.run(
        ["sbatch", "--wait", "--output", os.devnull, str(paths.script)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return first_rank_started(paths) - started


def workflow(paths: RunPaths) -> float:
    """Seconds from the rule's command to the first rank."""
    started = time.time()
    python("run", paths.directory, "--scheduler", "slurm")
    return first_rank_started(paths) - started


def main() -> int:
    """Print both medians and their difference. Returns the exit code."""
    if (
        shutil.which("sbatch") is None
        or subprocess.run(["sinfo"], capture_output=True, check=False).returncode
    ):
        print("submission: needs a running Slurm; `make slurm-cluster` starts one (skipped)")
        return 0
    differences, bares, workflows = [], [], []
    for pair in range(PAIRS):
        with tempfile.TemporaryDirectory() as directory:
            bares.append(bare(render(Path(directory) / "bare")))
            workflows.append(workflow(render(Path(directory) / "workflow")))
        differences.append(workflows[-1] - bares[-1])
        print(
            f"pair {pair + 1}: sbatch {bares[-1]:.2f} s, workflow {workflows[-1]:.2f} s", flush=True
        )
    print(f"sbatch to first rank     {statistics.median(bares):6.2f} s")
    print(f"workflow to first rank   {statistics.median(workflows):6.2f} s")
    print(
        f"difference               {statistics.median(differences):6.2f} s, "
        f"{min(differences):.2f} to {max(differences):.2f} (claim: 1 s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
