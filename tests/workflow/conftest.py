"""A checkout of its own for each test, so that code and configuration can be edited."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import programs
from tests.conftest import ROOT
from tests.made_sweeps import made_sweep
from tests.programs import well
from tests.texts import edit
from workflow_lib.records.paths import RunPaths

SNAKEMAKE = Path(sys.executable).parent / "snakemake"
PARTS = ("Snakefile", "workflow", "rules", "profiles", "config", "envs", "workflow_lib")

#: what ends a Snakemake that hangs, on a busy machine
LONGEST_S = 900

SWEEP = made_sweep(
    "Tiny cells for the tests",
    {"sample_rate_hz": 20},
    matrix=[{"models": ["gpt3-tiny", "llama3-tiny"], "gpus": 1, "dp": 1}],
)


@dataclass(frozen=True)
class Checkout:
    """A copy of the project with one sweep, ``tiny``."""

    directory: Path

    def write_sweep(self, **changes: Any) -> None:
        """Write the sweep, with some of its keys changed."""
        path = self.directory / "config" / "sweeps" / "tiny.yaml"
        path.write_text(yaml.safe_dump(SWEEP | changes), encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace text in a file, which must contain it."""
        edit(self.directory / name, old, new)

    def call(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command here, with these variables of the environment besides."""
        return programs.run(command, self.directory, os.environ | variables, LONGEST_S)

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``snakemake --profile profiles/local`` for the sweep's report."""
        target = arguments or ("results/sweeps/tiny/report.html",)
        return self.call(str(SNAKEMAKE), "--profile", "profiles/local", *target)

    def start(self) -> subprocess.Popen[bytes]:
        """The same, without waiting for it; in a process group of its own."""
        return subprocess.Popen(
            [str(SNAKEMAKE), "--profile", "profiles/local", "results/sweeps/tiny/report.html"],
            cwd=self.directory,
            env=os.environ | {"TRIPTYCH_ASK_SCHEDULER_EVERY_S": "2"},
            stdout=(self.directory / "snakemake.log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def planned_jobs(
        self, *asked: str, target: str = "results/sweeps/tiny/report.html"
    ) -> set[tuple[str, str]]:
        """The jobs that the next invocation would run: (rule, its cell or empty)."""
        done = well(self.snakemake(target, *asked, "--dry-run"))
        jobs, rule = set(), ""
        for line in (done.stdout + done.stderr).splitlines():
            words = line.split()
            if words and words[0] in ("rule", "localrule") and line.endswith(":"):
                rule = words[1].rstrip(":")
                jobs.add((rule, ""))
            elif words and words[0] == "wildcards:" and "cell=" in line:
                jobs.discard((rule, ""))
                cell = line.partition("cell=")[2].partition(",")[0]
                jobs.add((rule, cell.split("/")[1]))
        return jobs

    def runs(self) -> dict[str, RunPaths]:
        """The first run of each cell, by model."""
        found = (self.directory / "results" / "cells" / "local").glob("*/*/run1")
        return {path.parent.parent.name: RunPaths(path) for path in found}


def copy(target: Path, shipped_sweeps: bool = False) -> Checkout:
    """Copy the project's running parts, of its sweeps the demo alone unless all are wanted: each
    Snakemake plans all that are there, which takes two of its five seconds.
    """
    target.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / part)
    checkout = Checkout(target)
    own = f"python: {sys.executable}"
    checkout.edit("config/platforms/local.yaml", "python: .venv/bin/python", own)
    if not shipped_sweeps:
        for path in (target / "config" / "sweeps").iterdir():
            if path.stem != "demo":
                path.unlink()
        usual = "sweeps: [demo, parallelism, optimisation, microbatch, mi250-counterpart]"
        checkout.edit("config/config.yaml", usual, "sweeps: [demo]")
    checkout.write_sweep()
    return checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    """A fresh checkout without results."""
    return copy(tmp_path / "a checkout")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout whose sweep has run to its report, profiled runs among it; tests must leave it as
    they found it.
    """
    checkout = copy(tmp_path_factory.mktemp("finished") / "it's a $(checkout)")
    checkout.write_sweep(protocol=SWEEP["protocol"] | {"profiled_steps": 2})
    well(checkout.snakemake())
    return checkout


#: made of two sweeps of ``compared``
COMPARISON = "results/comparisons/tiny_vs_other/comparison.html"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A sweep that ran without faults, one of its runs profiled, and its comparison."""
    checkout = copy(tmp_path_factory.mktemp("compared") / "checkout")
    checkout.write_sweep(
        protocol=SWEEP["protocol"] | {"profiled_steps": 2},
        matrix=[{"models": "gpt3-tiny", "gpus": 1, "dp": 1}],
    )
    # Another sweep of the same cell trains nothing more, and can be compared with it.
    sweeps = checkout.directory / "config" / "sweeps"
    shutil.copy(sweeps / "tiny.yaml", sweeps / "other.yaml")
    path = checkout.directory / "config" / "config.yaml"
    chosen = yaml.safe_load(path.read_text(encoding="utf-8")) | {"sweeps": ["tiny", "other"]}
    path.write_text(yaml.safe_dump(chosen), encoding="utf-8")
    well(invoke(checkout))
    return checkout


def invoke(checkout: Checkout) -> subprocess.CompletedProcess[str]:
    """The same command each time: all sweeps, and their comparison."""
    return checkout.snakemake("all", COMPARISON)


def made(checkout: Checkout) -> dict[str, bytes]:
    """Every table, figure, page and script, and the cells, by name."""
    results = checkout.directory / "results"
    return {
        path.relative_to(results).as_posix(): path.read_bytes()
        for path in results.rglob("*")
        if path.suffix in (".parquet", ".svg", ".pdf", ".html", ".sh")
        or path.name in ("summary.json", "cell.json")
    }
