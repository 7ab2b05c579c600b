"""The power and use of GPUs of a run's nodes that no rank used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from workflow_lib.analysis.gpus import Gpu
from workflow_lib.analysis.known import Values, known, reasons_text
from workflow_lib.analysis.recordings import Recording
from workflow_lib.records import UNUSED_GPUS, Hardware

_NAMES = tuple(column.name for column in UNUSED_GPUS if column.name not in ("cell", "run"))


def unused_row(gpu: Gpu, hardware: Hardware) -> dict[str, Any]:
    """The row of UNUSED_GPUS, less ``cell`` and ``run``, of a GPU that the job had."""
    whole = gpu.row(hardware)
    row = {name: whole.get(name) for name in _NAMES}
    reasons = json.loads(whole["missing_reasons"])
    row["watched"] = True
    row["gpu_name"] = gpu.recording.start.gpus[gpu.gpu].get("name")
    if row["gpu_name"] is None:
        reasons["gpu_name"] = "the driver does not report it"
    lacking = {column: reason for column, reason in reasons.items() if column in row}
    row["missing_reasons"] = json.dumps(lacking, sort_keys=True, ensure_ascii=False)
    return row


def rows_of_others(recording: Recording) -> Iterator[dict[str, Any]]:
    """Rows of UNUSED_GPUS of GPUs that the job did not have, as the sampler found them when it
    began."""
    for other in recording.start.other_gpus:
        untold, unwatched = "the driver does not report it", "the GPU does not belong to the job"
        values: Values = {
            "gpu_name": known(other.get("name"), untold),
            "gpu_uuid": known(other.get("uuid"), untold),
            "power_mean_w": known(other.get("power_w"), untold),
            "power_limit_w": known(other.get("power_limit_w"), untold),
            "gpu_utilisation_share": (None, unwatched),
            "gpu_memory_used_peak_bytes": (None, unwatched),
        }
        row = {name: value for name, (value, _) in values.items()} | {
            "node": recording.node,
            "gpu": other["index"],
            "watched": False,
            "simulated": recording.start.simulated,
            "missing_reasons": reasons_text(values),
        }
        yield {name: row[name] for name in _NAMES}
