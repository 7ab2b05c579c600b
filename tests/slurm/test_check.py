"""A platform is checked on a real Slurm before a run is submitted."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.slurm import study
from workflow_lib.records.checks import CheckRecord, Finding, NodeCheck
from workflow_lib.records.files import read_record

pytestmark = pytest.mark.slow


class Site:
    """A new site's configuration and results beside a running cluster."""

    def __init__(self, cluster: Any, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        #: the directory whose profiles are looked at
        self.clone = study.ROOT

    def command(self, *options: str, **changes: Any) -> list[str]:
        """The command that checks h200 with some keys changed."""
        config, results = self.directory / "config", self.directory / "results"
        study.write(config, **changes)
        command = [sys.executable, "-m", "workflow_lib.check", "--platform", "h200", *options]
        return [*command, "--config", str(config), "--results", str(results)]

    def environment(self) -> dict[str, str]:
        """The variables of a shell on a login node."""
        return dict(self.cluster.environment) | {"TRIPTYCH_ASK_SCHEDULER_EVERY_S": "0.5"}

    def check(self, *options: str, **changes: Any) -> tuple[int, dict[str, Finding], str]:
        """Run that command. Returns the exit code, the findings by their part, and
        what was printed.
        """
        environment = self.environment() | {"PYTHONPATH": str(study.ROOT)}
        done = programs.run(self.command(*options, **changes), self.clone, environment)
        (path,) = (self.directory / "results").glob("checks/h200/*/check.json")
        found = read_record(path, CheckRecord)
        assert found.passed == (done.returncode == 0 and "--without-job" not in options)
        return done.returncode, {each.part: each for each in found.findings}, done.stdout

    def nodes(self) -> list[NodeCheck]:
        """What the job found on its nodes."""
        paths = sorted((self.directory / "results").glob("checks/h200/*/nodes/*.json"))
        return [read_record(path, NodeCheck) for path in paths]

    def jobs(self) -> int:
        """How many jobs were ever submitted for checks."""
        told = self.cluster.run("squeue", "--noheader", "--states=all", "--format=%j").stdout
        return sum(name.startswith("triptych-check-") for name in told.split())


@pytest.fixture
def site(slurm_cluster: Any, tmp_path: Path) -> Site:
    return Site(slurm_cluster, tmp_path)


def test_a_sound_platform_passes_on_both_nodes(site):
    code, found, printed = site.check()
    assert code == 0, printed
    assert {part for part, each in found.items() if each.held} == {
        *("partition", "sbatch --test-only", "job", "python", "clock")
    }
    # The cluster's GPUs are simulated, which no page hides.
    assert found["sensors"].held is None
    assert [each.node for each in site.nodes()] == ["h200-1", "h200-2"]
    for each in site.nodes():
        assert {"torch", "deepspeed", "numpy", "submitit"} == each.packages.keys()
        assert each.source == "simulated"
        assert not each.problems


@pytest.mark.parametrize(
    ("changes", "part", "key"),
    [
        ({"account": "nobody"}, "sbatch --test-only", "account"),
        ({"partition": "gold"}, "partition", "partition: Slurm knows no gold"),
        ({"gpu_type": "b300"}, "partition", "gpu_type"),
        ({"time_limit_max_min": 10_000}, "partition", "time_limit_max_min"),
        ({"reservation": "ours"}, "sbatch --test-only", "reservation"),
    ],
)
def test_what_slurm_would_refuse_is_found_without_a_job(site, changes, part, key):
    before = site.jobs()
    code, found, printed = site.check(**changes)
    assert code == 1
    assert found[part].held is False
    assert key in found[part].said
    assert key in printed
    assert site.jobs() == before


@pytest.mark.parametrize("wrong", ["slurm_partition=nowhere", "slurm_account=nobody"])
def test_a_profile_whose_analysis_slurm_takes_no_job_of_fails(site, wrong):
    profile = site.directory / "clone" / "profiles" / "slurm_h200" / "config.yaml"
    shutil.copytree(study.ROOT / "profiles", profile.parents[1])
    text = profile.read_text(encoding="utf-8")
    assert "  - slurm_partition=h200\n" in text
    resources = f"  - slurm_partition=h200\n  - {wrong}\n"
    if "partition" in wrong:
        resources = f"  - {wrong}\n"
    profile.write_text(text.replace("  - slurm_partition=h200\n", resources), encoding="utf-8")
    site.clone, before = profile.parents[2], site.jobs()
    code, found, _ = site.check()
    assert code == 1
    assert found["profile"].held is False
    assert wrong.removeprefix("slurm_") in found["profile"].said
    assert site.jobs() == before


def test_a_python_without_the_packages_is_found_on_the_nodes(site):
    bare = site.directory / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    code, found, _ = site.check(python=str(bare / "bin" / "python"))
    assert code == 1
    for package in ("torch", "numpy", "deepspeed", "submitit"):
        assert found[package].held is (None if package == "deepspeed" else False)
        assert "h200-1, h200-2" in found[package].said
    assert found["job"].held is True


def test_a_python_that_is_not_there_is_told_in_the_words_of_the_job(site):
    code, found, _ = site.check(python="/nowhere/python")
    assert code == 1
    assert found["job"].held is False
    assert "/nowhere/python" in found["job"].said
    assert site.nodes() == []


def test_ctrl_c_cancels_the_job(site):
    """While it waits in the queue, as on a busy cluster."""
    holds = site.directory / "bin" / "sbatch"
    holds.parent.mkdir()
    real = shutil.which("sbatch")
    holds.write_text(f'#!/bin/sh\nexec {real} --hold "$@"\n')
    holds.chmod(0o755)
    path = f"{holds.parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        site.command(),
        cwd=study.ROOT,
        env=site.environment() | {"PATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    job = next(found[1] for line in lines if (found := re.match(r"Job (\d+) was", line)))
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    told = site.cluster.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
    assert told.stdout.strip() in ("CANCELLED", "COMPLETING")
    assert not list((site.directory / "results").glob("checks/h200/*/check.json"))


def test_without_a_job_slurm_is_only_asked(site):
    before = site.jobs()
    code, found, _ = site.check("--without-job")
    assert code == 0
    assert site.jobs() == before
    assert "job" not in found
