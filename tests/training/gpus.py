"""How many ranks the GPUs of this machine take in tests.

Each rank has a GPU of its own, unless TRIPTYCH_TEST_RANKS_A_GPU says how many share one. So the
layouts of four or eight GPUs can train with NCCL on one. NCCL allows that from 2.30 on, with
NCCL_MULTI_RANK_GPU_ENABLE=1. Without CUDA's Multi-Process Service the ranks take turns on the GPU.
CONTRIBUTING.md has the commands.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace

import torch

from workflow_lib.trainers.native.launch import Launch

_RANKS_A_GPU = int(os.environ.get("TRIPTYCH_TEST_RANKS_A_GPU", "1"))


def take(ranks: int) -> bool:
    """Whether so many ranks run on the GPUs; on CPUs otherwise."""
    return torch.cuda.device_count() * _RANKS_A_GPU >= ranks


def of_the_rank(launch: Launch) -> Launch:
    """The launch as it would be if ranks that share a GPU were one, where they do share."""
    if not take(launch.local_world_size):
        return launch
    return replace(
        launch,
        local_rank=launch.local_rank // _RANKS_A_GPU,
        local_world_size=math.ceil(launch.local_world_size / _RANKS_A_GPU),
    )
