"""What torch can tell of a process that trains: its memory, and a trace of its steps.

:class:`Observed` is for programs of a sweep's cell that know nothing of it. ``triptych_steps`` asks
at the end of each step, so the program has imported torch by then.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from workflow_lib.records.whole_files import whole_file
from workflow_lib.trainers.hook import PROFILED_STEPS, TRACE
from workflow_lib.trainers.native.device import (
    allocator_settings,
    current_device,
    memory_of,
    on_gpu,
)

#: at level 9, gzip's default, text takes ten times as long to become a fifth smaller
_COMPRESSION_LEVEL = 3


class Observed:
    """This process's memory after each step and, in a profiled run, its trace."""

    def __init__(self, warmup_steps: int) -> None:
        self._device = current_device()
        #: as the rank's record has it
        self.allocator = allocator_settings(self._device) if on_gpu(self._device) else None
        self._profiler = None
        if trace := os.environ.get(TRACE):
            self._profiler = trace_recorder(
                self._device, warmup_steps, int(os.environ[PROFILED_STEPS])
            )
            self._profiler.on_trace_ready = lambda done: write_trace(done, Path(trace))

    def begin(self) -> None:
        """The first step begins."""
        if self._profiler is not None:
            self._profiler.start()

    def stepped(self) -> Mapping[str, int | None]:
        """A step has ended; returns columns of its row."""
        if self._profiler is not None:
            self._profiler.step()
        return memory_of(self._device).row


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
