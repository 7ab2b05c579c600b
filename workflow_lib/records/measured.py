"""Reads the record of a command that ``triptych measure`` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError

#: fields that any such record has
_NEEDED = (
    *("program", "started_unix_s", "rung", "simulated", "nodes"),
    *("values", "missing", "invalid", "gpus"),
)


def read_run(directory: Path) -> dict[str, Any]:
    """A command's ``measured.json``, and its ``directory``. Raises RecordError."""
    path = RunPaths(directory).measured
    try:
        run: dict[str, Any] = json.loads(path.read_bytes())
        return {"directory": directory, "window_unix_s": None} | run | {n: run[n] for n in _NEEDED}
    except FileNotFoundError:
        raise RecordError(f"{directory} has no {path.name}; name a run's directory") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is no record of a measured command: {error!r}") from None
