"""The training of research's cells where nothing else is said."""

from __future__ import annotations

from workflow_lib.records.training import Training

PLAIN = Training(
    zero_stage=1,
    micro_batch_size=1,
    global_batch_size=8,
    precision="bf16",
    recomputation="none",
    overlap=False,
    warmup_steps=1,
    measured_steps=1,
    learning_rate=1e-4,
    seed=1,
)
