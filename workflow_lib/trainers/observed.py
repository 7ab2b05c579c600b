"""What torch can tell, in a cell of a sweep, of a process that trains and knows nothing of it.

``triptych_steps`` asks at the end of each step, so the program has imported torch by then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from workflow_lib.trainers.hook import PROFILED_STEPS, TRACE
from workflow_lib.trainers.native.device import (
    allocator_settings,
    current_device,
    memory_of,
    on_gpu,
)
from workflow_lib.trainers.native.profiling import trace_recorder, write_trace


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
