"""Runs ``triptych measure`` in a process of its own, on simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import programs

ROOT = Path(__file__).parents[2]


def measure(
    directory: Path, *words: str, options: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Measure a command into ``directory``/run."""
    measuring = command(directory, *words, options=options)
    return programs.run(measuring, directory, environment(**variables))


def command(directory: Path, *words: str, options: tuple[str, ...] = ()) -> list[str]:
    """What measures a command into ``directory``/run."""
    own = [sys.executable, "-m", "workflow_lib.measure", "--output", str(directory / "run")]
    return [*own, "--simulate=1", *options, "--", *words]


def environment(**variables: str) -> dict[str, str]:
    """This process's variables outside of a job, and where the package is."""
    outside = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM", "TRIPTYCH"))}
    return {**outside, "PYTHONPATH": str(ROOT), **variables}


def measured(directory: Path) -> Mapping[str, Any]:
    """What the run's measured.json says."""
    text = (directory / "run/measured.json").read_text(encoding="utf-8")
    record: Mapping[str, Any] = json.loads(text)
    return record
