"""Traces of steps by torch's profiler."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from workflow_lib.records.whole_files import whole_file
from workflow_lib.trainers.native.device import on_gpu

#: at level 9, gzip's default, text takes ten times as long to become a fifth smaller
_COMPRESSION_LEVEL = 3


def trace_recorder(device: torch.device, warmup_steps: int, steps: int) -> profile:
    """A profiler that records the ``steps`` steps after the warm-up, if it is told of each step's
    end.

    It begins to trace, which takes seconds on a GPU, with the last step of the warm-up, and
    discards that step. The numbers of its marks, ``ProfilerStep#<n>``, are those of the steps.
    """
    activities = [ProfilerActivity.CPU]
    if on_gpu(device):
        activities.append(ProfilerActivity.CUDA)
    return profile(
        activities=activities,
        schedule=schedule(wait=warmup_steps - 1, warmup=1, active=steps, repeat=1),
    )


def write_trace(profiler: profile, path: Path) -> None:
    """Write what was recorded, compressed, whole or not at all. Raises OSError.

    The uncompressed text, perhaps a gigabyte, is stored in the node's temporary directory
    (``TMPDIR``).
    """
    with tempfile.TemporaryDirectory(prefix="triptych-trace-") as directory:
        text = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(text))
        with (
            whole_file(path) as draft,
            text.open("rb") as source,
            gzip.open(draft, "wb", compresslevel=_COMPRESSION_LEVEL) as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
