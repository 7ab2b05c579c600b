"""Processes that every test here may start, ended with the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.telemetry.cells import start_sampler
from workflow_lib import records


@pytest.fixture
def sampler() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start_sampler``, whose processes do not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def start(directory: Path, cell: records.Cell, **environment: str) -> subprocess.Popen[str]:
        started.append(start_sampler(directory, cell, **environment))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
