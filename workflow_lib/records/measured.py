"""Reads the record of a command that ``triptych measure`` measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError

#: fields that any such record has
_NEEDED = (
    *("program", "started_unix_s", "rung", "simulated", "nodes"),
    *("values", "missing", "invalid", "gpus"),
)

#: a GPU is at work if kernels run for this percentage of the time or, where that is not told, if it
#: draws this share of its power limit. One that heat slows draws little, and kernels run on it
_BUSY_PERCENT, _LOADED_SHARE = 50.0, 0.4


def is_at_work(gpu: Mapping[str, Any]) -> bool:
    """Whether a GPU of a record is at work: an idle one chooses its clock, which tells nothing."""
    busy_percent = gpu["utilisation_mean_percent"]
    if busy_percent is not None:
        return bool(busy_percent >= _BUSY_PERCENT)
    power_w, limit_w = gpu["power_mean_w"], gpu["power_limit_w"]
    return bool(power_w and limit_w and power_w >= _LOADED_SHARE * limit_w)


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
