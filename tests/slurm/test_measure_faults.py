"""Kills of what measures, and of what is measured, in jobs of a real Slurm.

FAULTS says how many; each kind takes its turn, on one node and on two, at a random moment.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.measure.test_faults import marked
from tests.waiting import until
from workflow_lib.records.paths import RunPaths

from .cluster import Cluster

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.kills
FAULTS = int(os.environ.get("FAULTS", "12"))
AT_ONCE = 4
#: kind of fault → the exit codes and signals that the job may have then, as sacct tells them, which
#: leaves out the 128 of a shell
KINDS = {
    "sampler": ("7:0",),
    "samplers' srun": ("7:0",),
    "paused sampler": ("7:0",),
    "command": ("9:0",),
    "measure": ("9:0",),
    "job": ("0:15", "0:0"),
}


class Job:
    """A measured job of one or two nodes, that ends with 7 once it may."""

    def __init__(self, cluster: Cluster, directory: Path, nodes: int) -> None:
        self.cluster, self.nodes, self.directory = cluster, nodes, directory
        self.paths = RunPaths(directory / "run")
        self.mark = f"fault-{os.getpid()}-{directory.name}"
        directory.mkdir()
        wait = f"echo up >> {directory}/up; until [ -e {directory}/go ]; do sleep 0.1; done; exit 7"
        script = directory / "job.sh"
        script.write_text(
            f"#!/bin/bash\n#SBATCH --nodes={nodes} --gres=gpu:h200:1 --ntasks-per-node=1\n"
            f"export PYTHONPATH={ROOT} FAULT={self.mark}\n"
            f"{sys.executable} -m workflow_lib.measure --output={self.paths.directory} "
            f"--simulate=1 -- srun --overlap sh -c '{wait}'\n"
        )
        options = (
            "--partition=h200",
            "--account=research",
            "--time=60",
            f"--output={directory}/out",
        )
        self.id = cluster.run("sbatch", "--parsable", *options, str(script)).stdout.strip()

    def processes(self, word: str) -> list[int]:
        """The job's processes with a word in their command lines."""
        found = []
        for pid in marked(self.mark):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                found.append(pid)
        return found

    def fault(self, kind: str, chance: random.Random) -> None:
        """Do it."""
        samplers = self.processes("sample")
        if kind == "job":
            self.cluster.run("scancel", self.id)
        elif kind == "paused sampler":
            victim = chance.choice(self.own_samplers())
            os.kill(victim, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(victim, signal.SIGCONT)
        else:
            victims = {
                "sampler": self.own_samplers(),
                # On one node there is none between. srun has a helper, which is younger, and
                # without which all goes on.
                "samplers' srun": sorted(set(samplers) - set(self.own_samplers()))[:1],
                "command": sorted(set(self.processes("srun")) - set(samplers))[:1],
                "measure": self.processes("measure") or self.processes("workflow_lib.measure"),
            }[kind] or self.own_samplers()
            if kind == "measure":
                victims = [p for p in victims if p not in samplers]
            os.kill(chance.choice(victims), signal.SIGKILL)

    def own_samplers(self) -> list[int]:
        """The samplers themselves, by their locks."""
        locks = self.paths.telemetry.glob("*.lock")
        return [int(lock.read_text().split()[1]) for lock in locks]

    def end(self) -> str:
        """Let it end; returns Slurm's exit code."""
        (self.directory / "go").touch()
        ended = ("sacct", "-nXP", "-j", self.id, "--format=ExitCode,End")
        until(lambda: "Unknown" not in (self.cluster.run(*ended).stdout or "Unknown"))
        until(lambda: marked(self.mark) == [])
        return self.cluster.run(*ended).stdout.split("|")[0]


def try_fault(cluster: Cluster, directory: Path, number: int) -> list[str]:
    """Try a fault; returns what did not hold."""
    kind, nodes = list(KINDS)[number % len(KINDS)], 1 + number // len(KINDS) % 2
    chance = random.Random(number)
    job = Job(cluster, directory / f"{number}", nodes)
    up = job.directory / "up"
    until(lambda: up.exists() and up.read_text().count("up") == nodes)
    time.sleep(chance.uniform(1.0, 3.0))
    before = time.time()
    while True:
        try:
            job.fault(kind, chance)
        except ProcessLookupError:  # what was to die has died by itself, as helpers of srun do
            continue
        break
    code = job.end()
    wrong = []
    if code not in KINDS[kind]:
        wrong.append(f"exit code {code}")
    for samples in job.paths.telemetry.glob("*-host.csv"):
        last = float(samples.read_text().rstrip("\n").rpartition("\n")[2].partition(",")[0])
        if last < before - 1.0:
            wrong.append(f"{samples.name} ends {before - last:.2f} s before the fault")
    own = [sys.executable, "-m", "workflow_lib.measure"]
    record = json.loads(job.paths.measured.read_bytes())
    if record["ended_unix_s"] is None:
        subprocess.run([*own, "conclude", str(job.paths.directory)], cwd=ROOT, check=True)
        record = json.loads(job.paths.measured.read_bytes())
    # A pause is bridged by the power that the driver keeps.
    died = kind in ("sampler", "samplers' srun")
    if died != bool(record["invalid"]) and kind != "paused sampler":
        wrong.append(f"invalid: {record['invalid']}")
    audited = subprocess.run([*own, "audit", str(job.paths.directory)], cwd=ROOT, check=False)
    if audited.returncode:
        wrong.append("the auditor differs")
    return [f"{kind} on {nodes}, fault {number}: {each}" for each in wrong]


def test_faults_keep_exit_codes_and_readings_and_leave_nothing(slurm_cluster, tmp_path):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda n: try_fault(slurm_cluster, tmp_path, n), range(FAULTS))
        wrong = [each for of_fault in found for each in of_fault]
    assert "\n".join(wrong) == ""
