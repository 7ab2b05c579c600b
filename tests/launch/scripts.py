"""Rendered job scripts, and commands that only write down how they were called."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.shipped import study as study
from tests.shipped import sweeps
from workflow_lib import cells, results
from workflow_lib.config import Platform
from workflow_lib.launch import job_script, snapshot
from workflow_lib.records.cell import Cell
from workflow_lib.study import load_study

CONFIG = Path(__file__).parent.parent.parent / "config"

#: the code of scripts that nobody runs
CODE = job_script.Code(
    Path("/srv/triptych/results/code/1000/0123456789abcdef.zip"), "5ca1ab1e" * 5, False
)

#: each call leaves its name and arguments, and its environment, in two files, null-terminated
_RECORDER = """#!/bin/sh
env -0 >"$RECORDS/$$.environment"
printf '%s\\0' "$0" "$@" >"$RECORDS/$$.part"
mv "$RECORDS/$$.part" "$RECORDS/$$.call"
"""


@cache
def planned(sweep: str, model: str | None = None, degrees: str | None = None) -> cells.PlannedCell:
    """The first feasible cell of a sweep, of the model and layout where these are given."""
    return next(
        each
        for each in sweeps()[sweep].cells
        if each.feasible
        and model in (None, each.cell.model.name)
        and degrees in (None, each.cell.degrees.name)
    )


def platform(directory: Path, base: str, **changes: Any) -> Platform:
    """The shipped platform ``base`` with some keys changed, read from a file as a user's is."""
    plain = yaml.safe_load((CONFIG / "platforms" / f"{base}.yaml").read_text(encoding="utf-8"))
    (directory / "platforms").mkdir(parents=True, exist_ok=True)
    (directory / "platforms" / "site.yaml").write_text(
        yaml.safe_dump(plain | changes), encoding="utf-8"
    )
    return load_study(directory).platforms["site"]


def with_telemetry(cell: Cell, **changes: Any) -> Cell:
    """The cell with other options of its telemetry, by default without an idle baseline."""
    telemetry = dataclasses.replace(cell.telemetry, **{"idle_baseline_s": 0, **changes})
    return dataclasses.replace(cell, telemetry=telemetry)


def command(directory: Path, name: str, script: str) -> Path:
    """A command of the shell, in a directory of a path; one that was there is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    new = directory / f"{name}.new"
    new.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    new.chmod(0o755)
    return new.replace(directory / name)


@dataclass(frozen=True)
class Call:
    """One call of a recorder: the command and its arguments, and its environment."""

    argv: list[str]
    environment: Mapping[str, str]


class Recorders:
    """Commands on a PATH of their own that write down how they were called, and do nothing else."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "recorders"
        self._records = directory / "records"
        self.directory.mkdir(parents=True)
        self._records.mkdir()

    def add(self, name: str) -> Path:
        """Make the command ``name``."""
        command = self.directory / name
        command.write_text(_RECORDER, encoding="utf-8")
        command.chmod(0o755)
        return command

    def run(
        self, script: Path, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script with these commands before all others on its path."""
        path = f"{self.directory}{os.pathsep}{os.environ['PATH']}"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if "SLURM" not in name and name != "PYTHONPATH"
        }
        # A cluster of this machine may know a job of the same number.
        no_cluster = {"SLURM_CONF": os.devnull}
        own = {"PATH": path, "RECORDS": str(self._records), **no_cluster}
        return subprocess.run(
            ["bash", str(script), *arguments],
            env=inherited | own | environment,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )

    def calls(self) -> list[Call]:
        """Every call since this was last asked."""
        found = []
        for record in sorted(self._records.glob("*.call")):
            pairs = _fields(record.with_suffix(".environment"))
            environment = dict(pair.split("=", 1) for pair in pairs)
            call = Call(_fields(record), environment)
            # What watches the run is ended at once, before or after it is recorded.
            if "stop-early" not in call.argv:
                found.append(call)
        for record in self._records.iterdir():
            record.unlink()
        return found

    def module_arguments(self, name: str, module: str) -> list[list[str]]:
        """Arguments of the calls of command ``name`` that start Python's ``module``."""
        return [
            call.argv[1:]
            for call in self.calls()
            if Path(call.argv[0]).name == name and module in call.argv
        ]


def _fields(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\0")[:-1]


def write(cell: Cell, site: Platform, root: Path, results_directory: Path) -> job_script.Places:
    """Render a run of the cell below ``results_directory``; returns where things are."""
    places = job_script.Places(
        root=root,
        run_directory=results.run_directory(results_directory, cell.id, 1),
        tokens=results.tokens(results_directory, cell.data),
        code=snapshot.write(results.code_directory(results_directory)),
    )
    job_script.write(cell, job_script.job_script(cell, site, places, 15), places.run_directory)
    return places
