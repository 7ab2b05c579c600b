"""Reads the link counters of one GPU for its rank, between two steps.

The sampler reads these counters at any time within a step. Only the rank knows when a step ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from workflow_lib.records import LinkReading
from workflow_lib.telemetry.nvidia.fields import NVLINK_RECEIVED, NVLINK_SENT, all_links_reader
from workflow_lib.telemetry.source import UnreadableError

#: one reading; raises UnreadableError
ReadLinks = Callable[[], LinkReading]


def open_links(uuid: str | None) -> ReadLinks:
    """A function that reads the counters of an NVIDIA GPU over all of its links, in about 2 ms.

    NVML stays open until the process ends. Raises UnreadableError with the reason if there is no
    GPU with that UUID, no binding, no driver, or no link.
    """
    if uuid is None:
        raise UnreadableError("the rank has no NVIDIA GPU, whose links alone are counted by steps")
    try:
        import pynvml
    except ImportError as error:
        raise UnreadableError(
            f"counting bytes over links needs the Python package nvidia-ml-py: {error}"
        ) from None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        raise UnreadableError(f"NVML does not open {uuid}: {error}") from None
    counters = all_links_reader(pynvml, handle, (NVLINK_SENT, NVLINK_RECEIVED))

    def read() -> LinkReading:
        try:
            values = counters()
        except pynvml.NVMLError as error:
            raise UnreadableError(f"the link counters were not read: {error}") from None
        whole: list[int] = []
        for value in values:
            if isinstance(value, UnreadableError):
                raise UnreadableError(f"the link counters were not read: {value}")
            whole.append(int(value))
        return LinkReading(time.time(), *whole)

    read()  # so that a missing counter is reported now, and not during training
    return read
