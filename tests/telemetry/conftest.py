"""What tests here share: processes that end with the test, and a library that plays NVML."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.telemetry import nvml
from tests.telemetry.cells import start_sampler
from workflow_lib.records.cell import Cell


@pytest.fixture
def sampler() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start_sampler``, whose processes do not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def start(directory: Path, cell: Cell, **environment: str) -> subprocess.Popen[str]:
        started.append(start_sampler(directory, cell, **environment))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A freshly built libnvidia-ml.so.1, which plays NVML as its script has it."""
    pytest.importorskip("pynvml")
    if shutil.which("gcc") is None:
        pytest.skip("the library that plays NVML needs gcc")
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def played(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.Played:
    """NVML as played in this process, for the real binding; time stands still until it is set."""
    import pynvml

    script = nvml.Script(tmp_path / "nvml.txt")
    monkeypatch.setenv("FAKE_NVML", str(script.path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    played = nvml.Played(nvml_library, script, 1_790_000_000.0)
    monkeypatch.setattr(time, "time", lambda: played.unix_s)
    # The binding keeps what it loaded first, which may be a real driver.
    monkeypatch.setattr(pynvml, "nvmlLib", played.library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return played
