"""Waiting for what another process or thread does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

#: how long anything may take that has to come
PATIENCE_S = 1800.0


def until(
    condition: Callable[[], object], process: subprocess.Popen[str] | None = None, what: str = ""
) -> None:
    """Wait until the condition holds; fails where the process ends first or the time is up."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
