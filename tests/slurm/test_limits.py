"""Limits that a job sets on the GPUs of two nodes are given back however Slurm ends the job. The
driver is a library that plays NVML, with a script for each node.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import psutil
import pytest

from tests.launch import scripts
from tests.slurm import study
from tests.telemetry import nvml
from tests.telemetry.conftest import nvml_library  # noqa: F401  (a fixture)
from tests.waiting import until
from workflow_lib import cells
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import NodeLimits
from workflow_lib.records.outcomes import EndedRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.study import load_study

pytestmark = pytest.mark.long

NODES = ("h200-1", "h200-2")
_INTERPRETER = """#!/bin/sh
run={run}
export FAKE_NVML="{directory}/$SLURMD_NODENAME.txt" LD_LIBRARY_PATH={library}
unset CUDA_VISIBLE_DEVICES
case "$*" in
*workflow_lib.launch.job.node*) exec {python} "$@" ;;
*workflow_lib.telemetry.limits*) exec {python} {directory}/limits.py "$@" ;;
*workflow_lib.telemetry*)
    touch "$run/telemetry/$SLURMD_NODENAME.ready"
    while [ ! -e "$run/telemetry/stop" ]; do sleep 0.05; done ;;
*workflow_lib.launch.job.rank*)
    touch "$run/trains-$SLURMD_NODENAME"
    while [ ! -e "$run/go" ]; do sleep 0.05; done ;;
esac
"""
_LIMITS = """import pathlib, sys
from workflow_lib.telemetry import limits
limits.LOCAL = pathlib.Path({local!r})
sys.exit(limits.main(sys.argv[3:]))
"""


class Site:
    """Two nodes, and jobs that limit their GPUs to 500 W."""

    def __init__(self, cluster, directory: Path, library: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.local = directory / "local"
        self.local.mkdir()
        for node in NODES:
            nvml.Script(directory / f"{node}.txt").say()
        (directory / "limits.py").write_text(_LIMITS.format(local=str(self.local)))
        self._library = library

    def start(self, name: str) -> tuple[str, RunPaths]:
        """Submit a job, and wait until it trains on both nodes."""
        interpreter = self.directory / name
        config = study.write(self.directory / f"{name}-config", python=str(interpreter))
        configured = load_study(config)
        planned = next(each for each in cells.expand_study(configured)["tiny-h200"].cells)
        training = dataclasses.replace(planned.cell.training, power_limits_w=(500,))
        cell = dataclasses.replace(planned.cell, training=training)
        results = self.directory / f"{name}-results"
        places = scripts.write(cell, configured.platforms["h200"], study.ROOT, results)
        paths = RunPaths(places.run_directory)
        interpreter.write_text(
            _INTERPRETER.format(
                run=paths.directory,
                directory=self.directory,
                library=self._library.parent,
                python=sys.executable,
            )
        )
        interpreter.chmod(0o755)
        output = f"--output={paths.logs}/slurm-%j.log"
        job = self.cluster.run("sbatch", "--parsable", output, str(paths.script)).stdout.strip()
        trains = [paths.directory / f"trains-{node}" for node in NODES]
        until(lambda: all(map(Path.exists, trains)) or self.is_over(job))
        assert not self.is_over(job), (paths.logs / f"slurm-{job}.log").read_text()
        assert self.in_force == [500_000, 500_000]
        return job, paths

    @property
    def in_force(self) -> list[int]:
        """The power limit of each node's GPU, mW."""
        return [int((self.directory / f"{node}.txt.set").read_text().split()[-1]) for node in NODES]

    def is_over(self, job: str) -> bool:
        return not self.cluster.run("squeue", "--noheader", "--jobs", job).stdout.strip()

    def setter_of(self, node: str, paths: RunPaths) -> psutil.Process:
        """The process that set the node's limits."""
        (found,) = [
            process
            for process in psutil.process_iter(["cmdline", "environ"])
            if "hold" in (process.info["cmdline"] or ())
            and str(paths.cell) in process.info["cmdline"]
            and process.info["environ"].get("SLURMD_NODENAME") == node
            and Path(process.info["cmdline"][0]).name.startswith("python")
        ]
        return found

    def finish(self, job: str) -> None:
        until(lambda: self.is_over(job))


@pytest.fixture
def site(slurm_cluster, tmp_path, nvml_library):  # noqa: F811
    site = Site(slurm_cluster, tmp_path, nvml_library)
    yield site
    slurm_cluster.run("scancel", "--me")


def restored(paths: RunPaths) -> list[bool]:
    found = [read_record(paths.node_limits(node), NodeLimits) for node in NODES]
    return [each.restored_unix_s is not None for each in found]


def test_a_job_that_ends_gives_limits_back_on_every_node(site):
    job, paths = site.start("ends")
    (paths.directory / "go").touch()
    site.finish(job)
    assert site.in_force == [700_000, 700_000]
    assert restored(paths) == [True, True]


def test_a_cancelled_job_gives_limits_back_on_every_node(site):
    job, paths = site.start("cancelled")
    site.cluster.run("scancel", job)
    until(lambda: site.in_force == [700_000, 700_000])
    site.finish(job)
    assert restored(paths) == [True, True]


def test_the_time_limit_gives_limits_back_on_every_node(site):
    job, paths = site.start("times-out")
    site.cluster.run("scancel", "--batch", "--signal=USR2", job)
    site.finish(job)
    assert site.in_force == [700_000, 700_000]
    assert restored(paths) == [True, True]


def test_a_killed_process_of_one_node_ends_the_run_and_gives_limits_back(site):
    job, paths = site.start("setter-killed")
    site.setter_of(NODES[1], paths).kill()
    site.finish(job)
    assert site.in_force == [700_000, 700_000]
    assert restored(paths) == [True, True]
    assert read_record(paths.ended, EndedRecord).failed_stage is not None


def test_the_next_job_gives_back_what_a_killed_job_left(site):
    job, paths = site.start("killed")
    setters = [site.setter_of(node, paths) for node in NODES]
    guards = [guard for setter in setters for guard in setter.children()]
    assert len(guards) == 2
    # As when Slurm has no patience left: all of it at once.
    for process in [*setters, *guards]:
        process.suspend()
    # Slurm continues what stands before it ends a job, so a guard must not be left until then.
    for process in [*guards, *setters]:
        process.kill()
    site.cluster.run("scancel", "--full", "--signal=KILL", job)
    site.finish(job)
    assert site.in_force == [500_000, 500_000]
    assert restored(paths) == [False, False]
    again, next_paths = site.start("next")
    found = [read_record(next_paths.node_limits(node), NodeLimits) for node in NODES]
    assert [each.gpus[0].power_limit_before_w for each in found] == [700.0, 700.0]
    assert restored(paths) == [True, True]
    (next_paths.directory / "go").touch()
    site.finish(again)
    assert site.in_force == [700_000, 700_000]
