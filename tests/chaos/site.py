"""What a user would have beside the cluster: a checkout, a configuration, and commands on the path.

The checkout is a copy, so that an edit while faults are put in changes nothing half-way.
"""

from __future__ import annotations

import compileall
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.slurm import study
from tests.slurm.cluster import Cluster
from workflow_lib import cells, results
from workflow_lib.launch import job_script, snapshot
from workflow_lib.records.paths import RunPaths
from workflow_lib.study import load_study

SWEEP = "chaos"
#: how often Slurm is asked by each process that waits, in seconds
ASK_EVERY_S = 3
_COPIED = ("workflow_lib", "rules", "envs", "workflow", "Snakefile")
#: sbatch that notes what it submitted, holds it in the queue or takes another account where it is
#: told to, and kills whoever called it, before it can hear of the job or just after
_SBATCH = """#!/usr/bin/env bash
[ -z "${CHAOS_ACCOUNT:-}" ] || set -- --account="$CHAOS_ACCOUNT" "$@"
[ -z "${CHAOS_HOLD_IN_QUEUE:-}" ] || set -- --hold "$@"
answer=$(%s "$@") || exit
# In one write, so that lines of two submissions are not mixed up.
printf -v line '\\t%%s' "$@"
printf '%%s\\n' "${answer%%%%;*}$line" >>%s
[ -z "${CHAOS_KILL_SUBMITTER:-}" ] || kill -KILL "$PPID"
printf '%%s\\n' "$answer"
"""

#: what the copy has beside its own telemetry: on the node that CHAOS_LOST_GPU names, a GPU is lost
#: before training begins
_LOST_GPU = """

_open_usual = _open


def _open(name, cell, node):
    import os

    if node == os.environ.get("CHAOS_LOST_GPU"):
        raise LostGpuError(0, "GPU 0 does not answer: GPU is lost")
    return _open_usual(name, cell, node)
"""


@dataclass(frozen=True)
class Command:
    """How a command ended and what it said."""

    code: int
    said: str


@dataclass(frozen=True)
class Site:
    """A study of its own, with its results, on one platform; Snakemake runs in its checkout."""

    cluster: Cluster
    directory: Path
    platform: str
    #: runs of each cell
    repeats: int
    #: whether models are really trained
    real: bool

    @property
    def results(self) -> Path:
        return self.directory / "results"

    @property
    def view(self) -> Path:
        """Where the sweep's tables are."""
        return results.sweep_paths(self.results, f"{SWEEP}-{self.platform}").directory

    @property
    def submissions(self) -> Path:
        """A line for each job: its id, and how sbatch was called."""
        return self.directory / "submissions"

    @property
    def temporary(self) -> Path:
        """What would be /tmp."""
        return self.directory.parent / "tmp"

    @property
    def environment(self) -> dict[str, str]:
        path = [self.directory / "bin", Path(sys.executable).parent, os.environ["PATH"]]
        return dict(self.cluster.environment) | {
            "TRIPTYCH_ASK_SCHEDULER_EVERY_S": str(ASK_EVERY_S),
            "PATH": os.pathsep.join(map(str, path)),
            "PYTHONPATH": str(self.directory),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
            # Ranks are held in the middle of their steps until the fault is in.
            "TRIPTYCH_HUNG_AFTER_S": "600",
        }

    def rendered(self, below: Path | None = None) -> list[RunPaths]:
        """Render every run of the sweep, as the rule does, in the results or in another directory
        of such; returns them in order.
        """
        below = below or self.results
        found = load_study(self.directory / "config")
        sweep = cells.expand_study(found)[f"{SWEEP}-{self.platform}"]
        runs = []
        for planned in sweep.cells:
            assert planned.estimate is not None, planned.reason
            for number in range(1, planned.repeats + 1):
                directory = results.run_directory(below, planned.cell.id, number)
                places = job_script.Places(
                    root=self.directory,
                    run_directory=directory,
                    tokens=results.tokens(below, planned.cell.data),
                    code=snapshot.write(
                        results.code_directory(below),
                        snapshot.take(self.directory / "workflow_lib"),
                    ),
                )
                script = job_script.job_script(
                    planned.cell,
                    found.platforms[self.platform],
                    places,
                    planned.estimate.time_limit_min,
                )
                job_script.write(planned.cell, script, directory)
                runs.append(RunPaths(directory))
        return runs

    def snakemake(self, *options: str) -> list[str]:
        """The command that completes the sweep, up to its tables."""
        return [
            *(sys.executable, "-m", "snakemake", str(self.view / "runs.parquet")),
            *("--cores", "6", "--resources", "runs_in_flight=16", "--keep-going"),
            *("--rerun-triggers", "mtime", "params", "input", "--rerun-incomplete", *options),
            "--force-use-threads",
            *("--config", f"platform={self.platform}", f"sweeps=[{SWEEP}]"),
            f"config_directory={self.directory}/config",
            f"results_directory={self.results}",
        ]

    def run(self, command: list[str], timeout_s: float = 300) -> Command:
        """Run a command in the checkout, to its end."""
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        return Command(done.returncode, done.stdout)


def build(
    cluster: Cluster,
    directory: Path,
    platform: str,
    repeats: int,
    real: bool = False,
    **changes: Any,
) -> Site:
    """Lay out a site in ``directory``; ``changes`` go into the platform's file."""
    directory.mkdir(parents=True)
    copy = ensure_copy(directory.parent, real)
    for name in _COPIED:
        (directory / name).symlink_to(copy / name)
    study.write(directory / "config", **changes)
    for left in (directory / "config" / "sweeps").iterdir():
        left.unlink()
    sweep = study._SWEEP | {
        "description": "Tiny models that faults are put into",
        "platforms": ["h200", "h100", "mi250"],
        "repeats": repeats,
        "matrix": [{"models": ["llama3-tiny", "gpt3-tiny"], "dp": 2}],
    }
    steps = {"warmup_steps": 1, "measured_steps": 60 if real else 8}
    sweep |= {"protocol": study._SWEEP["protocol"] | steps}
    (directory / "config" / "sweeps" / f"{SWEEP}.yaml").write_text(yaml.safe_dump(sweep))
    site = Site(cluster, directory, platform, repeats, real)
    site.temporary.mkdir(exist_ok=True)
    command = directory / "bin" / "sbatch"
    command.parent.mkdir()
    noted = shlex.quote(str(site.submissions))
    command.write_text(_SBATCH % (shutil.which("sbatch"), noted))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return site


def ensure_copy(parent: Path, real: bool) -> Path:
    """The copy of the checkout that all sites below ``parent`` share; made by the first."""
    copy = parent / ("checkout-real" if real else "checkout")
    if copy.exists():
        return copy
    skip = shutil.ignore_patterns("__pycache__")
    for name in _COPIED:
        source = study.ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=skip)
        else:
            shutil.copy2(source, copy / name)
    if not real:
        stand_in = Path(__file__).with_name("stand_in.py")
        shutil.copy2(stand_in, copy / "workflow_lib" / "trainers" / "native" / "__main__.py")
        with (copy / "workflow_lib" / "telemetry" / "choice.py").open("a") as stream:
            stream.write(_LOST_GPU)
    # Thousands of processes start from it.
    compileall.compile_dir(copy / "workflow_lib", quiet=1)
    return copy


def variables(pid: int) -> Mapping[str, str]:
    """The environment that a process was started with; empty where it is gone."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, _, value in pairs}
