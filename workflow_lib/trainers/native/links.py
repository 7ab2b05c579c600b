"""Counts the bytes that a rank's GPU sends and receives over its links, over whole steps.

A step exchanges its bytes in bursts, so a rate between two moments within steps is wrong by up to 8
%. Counted over whole steps it is exact::

    steps    0         1 … warm-up … measured …          last
              barrier, wait, read ┘                       └ barrier, wait, read

All steps exchange equally many bytes except the first, in which groups connect. So counting begins
after the first step, and the pause for reading is as far from the measured steps as possible.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

from workflow_lib.records.nodes import LinkCount, LinkReading
from workflow_lib.telemetry.devices.nvml import ReadLinks, open_links
from workflow_lib.telemetry.source import UnreadableError
from workflow_lib.trainers.native.device import Device

#: wait before a reading in s: drivers update their counters about every 0.1 s
_RENEWED_S = 0.25


class LinkCounting:
    """The count of one rank. All ranks must begin and end theirs together."""

    def __init__(
        self,
        rank: int,
        device: Device,
        warmup_steps: int,
        open_counters: Callable[[str | None], ReadLinks] = open_links,
        barrier: Callable[[], object] = dist.barrier,
    ) -> None:
        #: the first step that is counted
        self.first_step = min(1, warmup_steps)
        self._rank = rank
        self._device = device
        self._barrier = barrier
        self._read: ReadLinks | None = None
        self._before: LinkReading | None = None
        self._reason = ""
        if device.gpu is None:
            self._reason = "trained on a CPU"
            return
        try:
            self._read = open_counters(device.uuid)
        except UnreadableError as error:
            self._reason = str(error)

    def begin(self) -> None:
        """Read before the first step that is counted; every rank calls this."""
        self._before = self._at_rest()

    def end(self, steps: int) -> LinkCount:
        """Read after the last of a run's ``steps``; every rank calls this."""
        after = self._at_rest()
        if self._reason:
            return LinkCount(self._rank, self.first_step, 0, None, None, self._reason)
        counted = steps - self.first_step
        return LinkCount(self._rank, self.first_step, counted, self._before, after)

    def _at_rest(self) -> LinkReading | None:
        """The counters, read after every rank has finished its steps and before any begins the
        next."""
        if self._device.gpu is None:
            return None  # on all ranks: a run never mixes GPUs and CPUs
        self._device.synchronise()
        self._barrier()
        self._device.synchronise()
        time.sleep(_RENEWED_S)
        reading = None
        if self._read is not None and not self._reason:
            try:
                reading = self._read()
            except UnreadableError as error:
                self._reason = str(error)
        self._barrier()
        self._device.synchronise()
        return reading
