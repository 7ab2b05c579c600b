"""GPUs that a job had and no rank used: what they drew meanwhile."""

from __future__ import annotations

import json
from typing import Any

from workflow_lib.analysis.gpus import Gpu
from workflow_lib.records import UNUSED_GPUS, Hardware


def unused_row(gpu: Gpu, hardware: Hardware) -> dict[str, Any]:
    """A row of UNUSED_GPUS, less ``cell`` and ``run``."""
    whole = gpu.row(hardware)
    row = {
        column.name: whole.get(column.name)
        for column in UNUSED_GPUS
        if column.name not in ("cell", "run")
    }
    reasons = json.loads(whole["missing_reasons"])
    row["gpu_name"] = gpu.recording.start.gpus[gpu.gpu].get("name")
    if row["gpu_name"] is None:
        reasons["gpu_name"] = "its driver does not give it"
    lacking = {column: reason for column, reason in reasons.items() if column in row}
    row["missing_reasons"] = json.dumps(lacking, sort_keys=True, ensure_ascii=False)
    return row
