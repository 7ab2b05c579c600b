"""Events that the NVIDIA driver reports: Xid errors and memory errors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import ModuleType
from typing import Any

#: how many events one call reads at most: a burst of events must not delay sampling
_MOST_AT_ONCE = 100


class DriverEvents:
    """The driver's events for these GPUs."""

    def __init__(self, nvml: ModuleType, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._names = {
            nvml.nvmlEventTypeXidCriticalError: "xid",
            nvml.nvmlEventTypeSingleBitEccError: "ecc_corrected",
            nvml.nvmlEventTypeDoubleBitEccError: "ecc_uncorrected",
        }
        self._gpus = {_address(handle): gpu for gpu, handle in enumerate(handles)}
        self._set: Any = None
        #: for each GPU, why it reports no events; None if it does
        self.lacking: list[str | None]
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self.lacking = [str(error)] * len(handles)
            return
        self.lacking = [self._register(handle) for handle in handles]
        if None not in self.lacking:
            self.close()

    def read(self) -> list[tuple[int, str, int | None]]:
        """GPU, event, and number of an Xid, for each new event. Never waits. Raises NVMLError."""
        nvml = self._nvml
        events: list[tuple[int, str, int | None]] = []
        while self._set is not None and len(events) < _MOST_AT_ONCE:
            try:
                data = nvml.nvmlEventSetWait(self._set, 0)
            except nvml.NVMLError_Timeout:
                break
            except nvml.NVMLError:
                if not events:
                    raise
                break  # return the events before the error; the next call fails again
            gpu, name = self._gpus.get(_address(data.device)), self._names.get(data.eventType)
            if gpu is not None and name is not None:  # else it is of another GPU or kind
                events.append((gpu, name, data.eventData if name == "xid" else None))
        return events

    def close(self) -> None:
        """Free NVML's set of events."""
        if self._set is not None:
            self._nvml.nvmlEventSetFree(self._set)
            self._set = None

    def _register(self, handle: Any) -> str | None:
        """Register for the events that the GPU supports. Returns why that failed, or None."""
        nvml = self._nvml
        try:
            wanted = nvml.nvmlDeviceGetSupportedEventTypes(handle) & sum(self._names)
            if not wanted:
                return "the GPU reports neither Xid nor memory errors"
            nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except nvml.NVMLError as error:
            return str(error)
        return None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
