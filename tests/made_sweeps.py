"""What the file of a sweep says, for tests to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PROTOCOL = {"warmup_steps": 1, "measured_steps": 4, "idle_baseline_s": 0, "sample_rate_hz": 10}
_TRAINING = {
    "zero_stage": 1,
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "precision": "fp32",
    "recomputation": "none",
    "overlap": False,
    "learning_rate": 1.0e-3,
    "seed": 1,
}


def made_sweep(
    description: str,
    protocol: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """A sweep of one run a cell on this machine, without a matrix unless it is among ``keys``."""
    return {
        "description": description,
        "platforms": ["local"],
        "repeats": 1,
        "data": "synthetic",
        "protocol": _PROTOCOL | dict(protocol or {}),
        "training": _TRAINING | dict(training or {}),
        **keys,
    }
