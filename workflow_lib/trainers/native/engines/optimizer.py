"""The optimiser that every backend steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from workflow_lib.records import Training
from workflow_lib.trainers.native.device import on_gpu


def adamw(
    weights: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    training: Training,
    device: torch.device,
) -> torch.optim.AdamW:
    """AdamW with a cell's options, over weights or groups of them; on GPUs one fused kernel."""
    return torch.optim.AdamW(
        weights,
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        fused=on_gpu(device),
    )
