"""Torch's allocator of GPU memory: its settings, and how often it ran short.

The allocator keeps the segments that tensors no longer need. If it finds no room for a tensor and
the driver has none either, it gives all unused segments back to the driver and asks again. That is
a retry. To give a segment back waits for all work of the GPU, so a run that does it in its steps is
slower and draws less power than its layout does with memory to spare.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import torch

#: with either of them torch asks the driver for each tensor, and keeps nothing
_NO_CACHING = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
#: the only allocator that counts its shortages; others tell 0
_NATIVE = "native"
#: the key of torch's own record; on ROCm too
_ASKED = "PYTORCH_CUDA_ALLOC_CONF"


def described(device: torch.device) -> str:
    """A GPU's allocator and its settings in the order of the alphabet: "native" or
    "native, expandable_segments:True". Torch tells them, so settings that code changed count too.
    """
    backend = torch.cuda.get_allocator_backend()
    if not _keeps_segments():
        return f"{backend}, no caching"
    if backend != _NATIVE:
        return backend
    asked = torch.cuda.memory._snapshot(device)["allocator_settings"][_ASKED]
    # Commas within brackets belong to one setting.
    parts = re.split(r",(?![^\[]*\])", asked.replace(" ", ""))
    return ", ".join([backend, *sorted(filter(None, parts))])


def shortages(stats: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Retries, and segments that were given back to the driver, since the process began; ``stats``
    are those of torch.cuda.memory_stats. None where the allocator does not count them."""
    if not _keeps_segments() or torch.cuda.get_allocator_backend() != _NATIVE:
        return None, None
    return stats.get("num_alloc_retries"), stats.get("num_device_free")


def _keeps_segments() -> bool:
    return not any(name in os.environ for name in _NO_CACHING)
