"""The same work given to two clients of Slurm: this workflow, and Snakemake's executor plugin.

Both are Snakemake. This workflow's run rule submits the rendered script of a cell; the plugin
submits a second Snakemake, which runs the rule's command.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from tests.slurm import study
from workflow_lib import cells, records, results
from workflow_lib.launch import job_script, snapshot
from workflow_lib.records import JobRecord, RunPaths
from workflow_lib.study import load_study

_SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
#: what the stand-in of a run holds for this long, unless it is ended before
LONG_S = 7200.0


class Client(Protocol):
    """A workflow that can be started; runs count from 1."""

    name: str

    def command(self) -> Sequence[str]:
        """The command line of ``snakemake``."""

    def directory(self) -> Path:
        """Where it is started."""

    def output(self, run: int) -> str:
        """The file by which Snakemake calls the run."""

    def job(self, run: int) -> str:
        """Slurm's id of the run's job."""

    def has_begun(self, run: int) -> bool:
        """Whether the run's job has come as far as it shall, before it is ended."""

    def fails_with(self, arguments: Sequence[str]) -> bool:
        """Whether a job fails in order where this process of it is asked to end (SIGTERM)."""


class Triptych:
    """This repository's workflow, with one cell of one rank, whose GPU's readings are simulated."""

    name = "Triptych"

    def __init__(
        self,
        place: Path,
        runs: int,
        partition: str,
        baseline_s: float,
        measured_steps: int | None = None,
    ) -> None:
        """Write the configuration and the runs' scripts below ``place``."""
        self._config, self._results = place / "config", place / "results"
        self._runs = runs
        study.write(self._config, partition=partition, gpu_type=None, constraint=None)
        platform = self._config / "platforms" / "h200.yaml"
        _edit(platform, {"nodes": 1, "airflow": ["front"]})
        sweep = self._config / "sweeps" / "tiny.yaml"
        content = yaml.safe_load(sweep.read_text(encoding="utf-8"))
        content["protocol"] |= {"idle_baseline_s": baseline_s, "sample_rate_hz": 1}
        if measured_steps is not None:
            content["protocol"] |= {"measured_steps": measured_steps}
        matrix = [{"models": "llama3-tiny", "dp": 1}]
        _edit(sweep, content | {"platforms": ["h200"], "repeats": runs, "matrix": matrix})
        loaded = load_study(self._config)
        (planned,) = cells.expand_study(loaded)["tiny"].cells
        if planned.estimate is None:
            raise ValueError(f"the cell cannot run: {planned.reason}")
        self._cell = planned.cell
        for run in range(1, runs + 1):
            paths = self.paths(run)
            places = job_script.Places(
                *(study.ROOT, paths.directory, None),
                snapshot.write(results.code_directory(self._results)),
            )
            limit_min = 60 + planned.estimate.time_limit_min
            script = job_script.job_script(
                planned.cell, loaded.platforms["h200"], places, limit_min
            )
            job_script.write(planned.cell, script, paths.directory)

    def paths(self, run: int) -> RunPaths:
        """Where a run's files are."""
        return RunPaths(results.run_directory(self._results, self._cell.id, run))

    def command(self) -> list[str]:
        """Everything that the profile says, with as many runs in flight as there are."""
        many = str(max(32, self._runs))
        return [
            *(_SNAKEMAKE, "--profile", str(study.ROOT / "profiles" / "slurm_h200"), "--nolock"),
            *("--until", "run", "--jobs", many, "--cores", many, "--local-cores", many),
            *("--resources", f"runs_in_flight={self._runs}", "--config"),
            f"config_directory={self._config}",
            f"results_directory={self._results}",
            "sweeps=[tiny]",
        ]

    def directory(self) -> Path:
        """The repository."""
        return study.ROOT

    def output(self, run: int) -> str:
        """The run rule's only output."""
        return str(self.paths(run).outcome)

    def job(self, run: int) -> str:
        """As who submitted it wrote down."""
        return records.read_record(self.paths(run).job, JobRecord).job_id

    def has_begun(self, run: int) -> bool:
        """Telemetry is ready, so the job is at its idle baseline."""
        return any(self.paths(run).telemetry.glob("*.ready"))

    def fails_with(self, arguments: Sequence[str]) -> bool:
        """Its script ends by itself then, and writes its end record."""
        return is_batch_script(arguments)


class Plugin:
    """A workflow of one rule, run by snakemake-executor-plugin-slurm as it comes.

    Its only settings are the partition, time and memory that a job needs, and that no account is
    guessed, which would be one more command a job.
    """

    name = "executor plugin"

    def __init__(
        self, place: Path, runs: int, partition: str, command: str, limit_min: int = 120
    ) -> None:
        """Write the workflow below ``place``; ``command`` may hold the wildcard ``{run}``."""
        self._place, self._runs, self._partition = place, runs, partition
        self._limit_min = limit_min
        place.mkdir(parents=True)
        (place / "Snakefile").write_text(
            _SNAKEFILE.format(runs=runs, command=command), encoding="utf-8"
        )

    def command(self) -> list[str]:
        """As many jobs at once as there are runs, and the plugin's own status checks."""
        return [
            *(_SNAKEMAKE, "--executor", "slurm", "--jobs", str(self._runs), "--keep-going"),
            *("--slurm-no-account", "--default-resources", f"slurm_partition={self._partition}"),
            *(f"runtime={self._limit_min}", "mem_mb=4000"),
        ]

    def directory(self) -> Path:
        """Beside its Snakefile."""
        return self._place

    def output(self, run: int) -> str:
        """The rule's output."""
        return f"done/{run}"

    def job(self, run: int) -> str:
        """As its job wrote down."""
        return (self._place / "begun" / str(run)).read_text(encoding="ascii").strip()

    def has_begun(self, run: int) -> bool:
        """The rule's command has begun."""
        return (self._place / "begun" / str(run)).exists()

    def fails_with(self, arguments: Sequence[str]) -> bool:
        """The rule's command fails where what it waits for is ended."""
        return arguments[:1] == ["sleep"]


_SNAKEFILE = """\
localrules: all

rule all:
    input: expand("done/{{run}}", run=range(1, {runs} + 1))

rule run:
    output: "done/{{run}}"
    resources: gres="gpu:1"
    shell: {command!r}
"""


def stand_in() -> str:
    """A command of the plugin's rule that says when it begins, and does nothing for long."""
    begun = "mkdir -p begun; echo $SLURM_JOB_ID > begun/.{wildcards.run}"
    begun += "; mv begun/.{wildcards.run} begun/{wildcards.run}"
    return f"{begun}; sleep {LONG_S:.0f}; touch {{output}}"


def is_batch_script(arguments: Sequence[str]) -> bool:
    """Whether this process of a job is the script that was submitted, as slurmd keeps it."""
    return any(argument.endswith("/slurm_script") for argument in arguments)


def training(cell: Path) -> str:
    """A command of the plugin's rule that trains a cell of one rank, and keeps nothing else."""
    launch = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=0"
    python = f"PYTHONPATH={shlex.quote(str(study.ROOT))} {shlex.quote(sys.executable)}"
    trainer = f"{python} -m workflow_lib.trainers.native"
    return f"{launch} {trainer} {shlex.quote(str(cell))} && touch {{output}}"


def is_training(arguments: Sequence[str]) -> bool:
    """Whether this process of a job trains, or launches what trains."""
    return "workflow_lib.trainers.native" in " ".join(arguments) and not is_batch_script(arguments)


def _edit(path: Path, changes: Mapping[str, Any]) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(content | dict(changes)), encoding="utf-8")
