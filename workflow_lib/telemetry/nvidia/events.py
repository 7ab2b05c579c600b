"""What the NVIDIA driver reports of its own accord: Xid errors and memory errors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import ModuleType
from typing import Any

#: More are left for the next call: a burst of events must not hold up the sampling.
_MOST_AT_ONCE = 100


class DriverEvents:
    """A set of the driver's events, for all GPUs of the node."""

    def __init__(self, nvml: ModuleType, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._names = {
            nvml.nvmlEventTypeXidCriticalError: "xid",
            nvml.nvmlEventTypeSingleBitEccError: "ecc_corrected",
            nvml.nvmlEventTypeDoubleBitEccError: "ecc_uncorrected",
        }
        self._gpus = {_address(handle): gpu for gpu, handle in enumerate(handles)}
        self._set: Any = None
        #: by GPU, why it tells of none, None where it does
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
        """GPU, event, and an Xid's number, of what is new; never waits. Raises NVMLError."""
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
                break  # what came before it is told first; the next call fails again
            gpu, name = self._gpus.get(_address(data.device)), self._names.get(data.eventType)
            if gpu is not None and name is not None:  # else nobody asked for it
                events.append((gpu, name, data.eventData if name == "xid" else None))
        return events

    def close(self) -> None:
        """Give the set back."""
        if self._set is not None:
            self._nvml.nvmlEventSetFree(self._set)
            self._set = None

    def _register(self, handle: Any) -> str | None:
        """Ask for what of the events the GPU supports; why not, where that fails."""
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
