"""Reads the link counters of one GPU when a rank asks for them, between two of its steps.

The sampler reads them now and then, in whatever part of a step; a rank knows when a step ends.
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
    """The counters of an NVIDIA GPU, over all of its links. A reading takes about 2 ms.

    NVML stays open for as long as the process lives. Raises UnreadableError with the reason where
    there is none: no GPU with that UUID, no binding, no driver, or no links.
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

    read()  # what it lacks is told now, not in the middle of training
    return read
