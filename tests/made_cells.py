"""Cells that no configuration has: every field of them can be set."""

from __future__ import annotations

import dataclasses
from typing import Any

from workflow_lib.records.cell import Cell, Data, Hardware, Telemetry
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training

_MODEL = Model("tiny", "llama", 4, 64, 256, 4, 4, 2048, 1000)
TRAINING = Training(
    zero_stage=1,
    micro_batch_size=1,
    global_batch_size=128,
    precision="bf16",
    recomputation="none",
    overlap=False,
    warmup_steps=5,
    measured_steps=20,
    learning_rate=1e-4,
    seed=1,
)
HARDWARE = Hardware(
    platform="h200",
    gpu=None,
    gpus_per_node=8,
    gpus_per_package=1,
    gpu_memory_bytes=None,
    peak_bf16_flops_per_s=None,
    peak_fp32_flops_per_s=None,
    power_limit_w=None,
    airflow=("unknown",) * 8,
)
_CELL = Cell(
    id="h200/tiny/tp1-pp1-dp8_mb1_01234567",
    model=_MODEL,
    degrees=Degrees(dp=8),
    training=TRAINING,
    data=Data("synthetic", "synthetic"),
    hardware=HARDWARE,
    telemetry=Telemetry("auto", 10.0, 30.0),
    nodes=1,
    software={},
)


def made_cell(platform: str = "h200", model: str | Model = "tiny", **fields: Any) -> Cell:
    """A cell of one node of eight GPUs, with these fields instead of its own."""
    named = dataclasses.replace(_MODEL, name=model) if isinstance(model, str) else model
    fields = {
        "model": named,
        "hardware": dataclasses.replace(HARDWARE, platform=platform),
    } | fields
    return dataclasses.replace(_CELL, **fields)
