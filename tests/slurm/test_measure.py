"""``triptych measure`` in batch scripts of a real Slurm, on simulated GPUs."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.programs import well
from tests.waiting import PATIENCE_S, until

from .cluster import Cluster

ROOT = Path(__file__).parents[2]
ON_H200 = ("--partition=h200", "--account=research", "--time=60", "--wait")
TRAINERS = ROOT / "tests/measure/trainers/programs.py"
#: a rank that meets the others in each step, as ranks that exchange gradients do
RANK = """
import os, pathlib, sys, time
sys.path.insert(0, os.environ["PYTHONPATH"].split(":")[0])
import triptych_steps
here = pathlib.Path(sys.argv[1])
rank, ranks = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
for number in range(6):
    with triptych_steps.step(tokens=10):
        (here / f"step{number}-{rank}").touch()
        while len(list(here.glob(f"step{number}-*"))) < int(ranks):
            time.sleep(0.01)
        time.sleep(0.2)
"""


def run_job(
    cluster: Cluster, directory: Path, nodes: int, measured: str, before: str = ""
) -> tuple[int, str]:
    """Run a batch script to its end: its exit code, and what it printed."""
    script = directory / "job.sh"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --nodes={nodes} --gres=gpu:h200:2 --ntasks-per-node=2\n"
        f"export PYTHONPATH={ROOT}\n"
        f"{before}{sys.executable} -m workflow_lib.measure --output={directory}/run --simulate=2 "
        f"{measured}\n"
    )
    output = directory / "job.out"
    ended = cluster.run(
        "sbatch", *ON_H200, f"--output={output}", str(script), check=False, timeout=PATIENCE_S
    )
    # Ranks print progress bars side by side, one into the middle of the other's character.
    return ended.returncode, output.read_text(encoding="utf-8", errors="replace")


def record_of(directory: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((directory / "run/measured.json").read_text())
    return record


def test_two_nodes_of_four_ranks_are_counted_once(slurm_cluster, tmp_path):
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    command = f"srun --overlap {sys.executable} {program} {tmp_path}"
    options = f"--steps=hook --warmup-steps=2 -- {command}"
    code, printed = run_job(slurm_cluster, tmp_path, 2, options)
    record = record_of(tmp_path)
    assert (code, record["nodes"]) == (0, ["h200-1", "h200-2"])
    assert [(gpu["node"], gpu["gpu"]) for gpu in record["gpus"]] == [
        (node, gpu) for node in ("h200-1", "h200-2") for gpu in (0, 1)
    ]
    assert record["steps"] == [f"steps/rank{rank}.csv" for rank in range(4)]
    # Two of six steps are warm-up; each has the tokens of four ranks.
    assert record["values"]["counted_steps"] == 4
    per_token_j = record["values"]["energy_j"] / (4 * 4 * 10)
    assert record["values"]["energy_per_token_j"] == pytest.approx(per_token_j)
    assert record["invalid"] == [], printed


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["transformers", "lightning", "deepspeed", "torch"])
def test_each_step_of_a_trainer_is_seen(trainer, slurm_cluster, tmp_path):
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2"
    program = f"{TRAINERS} {trainer} --steps=8 --calls --records={tmp_path}/records"
    options = f"--steps=hook --warmup-steps=2 -- srun --overlap --ntasks=1 {torchrun} {program}"
    code, printed = run_job(slurm_cluster, tmp_path, 1, options)
    record = record_of(tmp_path)
    assert (code, record["rung"], record["invalid"]) == (0, 4, []), printed
    assert record["values"]["counted_steps"] == 6
    for rank in range(2):
        calls, hook = (
            list(csv.DictReader((tmp_path / f"run/steps/{name}{rank}.csv").open()))
            for name in ("rank", "hook-rank")
        )
        assert (len(calls), len(hook)) == (8, 7)
        # The optimizer steps within the call, of which the hook knows nothing.
        for call, step in zip(calls[1:], hook, strict=True):
            assert call["started_unix_s"] < step["ended_unix_s"] <= call["ended_unix_s"]


def test_the_log_of_the_job_has_the_steps(slurm_cluster, tmp_path):
    line = "[Rank 0] step=$n, skipped=0, lr=[0.1]"
    loop = f'for n in 1 2 3 4 5 6; do echo "{line}"; sleep 0.3; done; exit 9'
    code, _ = run_job(slurm_cluster, tmp_path, 1, f"--tokens-per-step=7 -- bash -c '{loop}'")
    record = record_of(tmp_path)
    assert (code, record["exit_code"], record["rung"]) == (9, 9, 1)
    assert record["values"]["counted_steps"] == 3
    assert record["values"]["step_time_s"] == pytest.approx(0.3, abs=0.25)


def test_a_job_that_runs_is_measured_from_outside(slurm_cluster, tmp_path):
    line = "[Rank 0] step=$n, skipped=0, lr=[0.1]"
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:h200:2\n"
        f"until [ -e {tmp_path}/run/measured.json ]; do sleep 0.1; done\n"
        f'for n in 1 2 3 4 5 6; do echo "{line}"; sleep 0.3; done; exit 9\n'
    )
    options = [option for option in ON_H200 if option != "--wait"]
    submitted = ("sbatch", "--parsable", *options, f"--output={tmp_path}/job.out", str(script))
    job = slurm_cluster.run(*submitted).stdout.strip()
    until(lambda: "RUNNING" in slurm_cluster.run("squeue", "-h", "-j", job, "-o%T").stdout)
    attach = [sys.executable, "-m", "workflow_lib.measure", "attach", job, "--simulate=2"]
    environment = {**slurm_cluster.environment, "PYTHONPATH": str(ROOT)}
    options = [f"--output={tmp_path}/run", "--tokens-per-step=7"]
    well(programs.run([*attach, *options], tmp_path, environment))
    record = record_of(tmp_path)
    assert (record["job_id"], record["exit_code"], record["rung"]) == (job, 9, 1)
    assert (record["nodes"], len(record["gpus"])) == (["h200-1", "h200-2"], 4)
    assert (record["invalid"], record["values"]["counted_steps"]) == ([], 3)
    # It runs no more.
    again = programs.run(attach, env=environment)
    assert again.returncode == 2


def test_under_srun_one_task_measures_for_all(slurm_cluster, tmp_path):
    code, _ = run_job(slurm_cluster, tmp_path, 2, "-- bash -c 'exit 0'", before="srun ")
    assert code == 0
    assert record_of(tmp_path)["nodes"] == ["h200-1", "h200-2"]
    assert len(list(tmp_path.glob("run*"))) == 1


def test_a_cancelled_job_keeps_what_was_measured(slurm_cluster, tmp_path):
    # The signal ends the batch script, and Slurm kills what is left of the job.
    script = "-- bash -c 'sleep 3; scancel --signal=TERM --full $SLURM_JOB_ID; sleep 60'"
    code, _ = run_job(slurm_cluster, tmp_path, 1, script)
    assert code != 0
    own = [sys.executable, "-m", "workflow_lib.measure"]
    subprocess.run([*own, "conclude", str(tmp_path / "run")], check=True, cwd=ROOT)
    record = record_of(tmp_path)
    assert record["ended_unix_s"] - record["started_unix_s"] > 2
    assert record["values"]["energy_j"] > 0
