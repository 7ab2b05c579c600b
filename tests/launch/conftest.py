"""What tests of runs and their owners share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch import runs
from tests.launch.fake_slurm import Fake
from tests.telemetry.conftest import nvml_library  # noqa: F401  (a fixture)
from workflow_lib.launch import job_wait, submit
from workflow_lib.launch.schedulers import choice
from workflow_lib.records.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A rendered run of this machine."""
    return runs.rendered(tmp_path)


@pytest.fixture
def slurm_paths(tmp_path: Path) -> RunPaths:
    """A rendered run of a cluster."""
    return runs.rendered(tmp_path, "smoke-h200")


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """What every run uses."""
    made = Fake()
    monkeypatch.setattr(choice, "choose", lambda name: made)
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are as in real life, only shorter."""
    monkeypatch.setattr(job_wait, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(job_wait, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(job_wait, "FILE_SYSTEM_LAG_S", 0.1)
    monkeypatch.setattr(job_wait, "SETTLE_S", 0.1)
    monkeypatch.setattr(submit, "ASK_EVERY_S", 0.02)
