"""Programs of their own, whose texts are kept."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
Command = Sequence[str | os.PathLike[str]]


def run(
    command: Command,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """A program that has ended, however it did."""
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def well(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """What a program said that must have ended with 0."""
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done


def start(
    command: Command, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A program that runs; both of its streams can be read."""
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
