"""What tests of runs and their owners share."""

from __future__ import annotations

import pytest

from workflow_lib.launch.owner import job_wait, submit


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are as in real life, only shorter."""
    monkeypatch.setattr(job_wait, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(job_wait, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(job_wait, "FILE_SYSTEM_LAG_S", 0.1)
    monkeypatch.setattr(job_wait, "SETTLE_S", 0.1)
    monkeypatch.setattr(submit, "ASK_EVERY_S", 0.02)
