"""What the NVIDIA driver collects by itself: events, which are Xid errors and memory errors, and
power samples, of which it takes one every 20 ms and keeps the last 2.4 s (119 on H200).
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from workflow_lib.telemetry.source import UnreadableError

#: a timestamp that differs more than this from the wall clock does not count from the epoch
_LARGEST_OFFSET_US = 3_600 * 10**6
#: if the last sample is further ahead of the wall clock than this, the clock was set back
_CLOCK_STEP_US = 10**6
#: room for several times as many samples as drivers keep
_CAPACITY = 1_024

#: nvmlValueType_t → layout of nvmlSample_t: the timestamp, and the value in the first bytes of an
#: eight-byte union. Unpacking samples with it takes a tenth of the time of the binding's objects.
_LAYOUTS = {
    kind: struct.Struct(f"=Q{value}")
    for kind, value in enumerate(("d", "I4x", "Q", "Q", "q", "i4x", "H6x"))
}


class PowerSamples:
    """Collects each sample of each GPU once."""

    def __init__(self, nvml: ModuleType, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = handles
        self._function = getattr(nvml.nvmlLib, "nvmlDeviceGetSamples", None)
        self._value_type, self._count = ctypes.c_int(), ctypes.c_uint()
        self._samples = (nvml.c_nvmlSample_t * _CAPACITY)()
        #: for each GPU, the timestamp of the last sample that ``read`` returned
        self._seen_us = [0] * len(handles)
        #: for each GPU, why it has no samples; None if it has
        self.lacking = [self._why_not(gpu) for gpu in range(len(handles))]

    def read(self, gpu: int) -> list[tuple[int, int]]:
        """The new samples in order of time: timestamp in µs since the epoch, mW.

        Raises NVMLError, and UnreadableError if timestamps or values cannot be interpreted.
        """
        if self.lacking[gpu] is not None:
            return []
        now_us = int(time.time() * 1e6)
        seen_us = self._seen_us[gpu]
        if seen_us > now_us + _CLOCK_STEP_US:
            seen_us = now_us - _CLOCK_STEP_US
        samples = self._since(gpu, seen_us)
        if samples:
            self._seen_us[gpu] = samples[-1][0]
        return samples

    def _since(self, gpu: int, seen_us: int) -> list[tuple[int, int]]:
        nvml = self._nvml
        if self._function is None:
            raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self._count.value = _CAPACITY
        code = self._function(
            self._handles[gpu],
            nvml.NVML_TOTAL_POWER_SAMPLES,
            ctypes.c_ulonglong(seen_us),
            ctypes.byref(self._value_type),
            ctypes.byref(self._count),
            self._samples,
        )
        if code == nvml.NVML_ERROR_NOT_FOUND:
            return []  # no new samples
        if code:
            raise nvml.NVMLError(code)
        layout = _LAYOUTS.get(self._value_type.value)
        if layout is None:
            raise UnreadableError(f"unknown NVML value type {self._value_type.value}")
        buffer = memoryview(self._samples).cast("B")[: self._count.value * layout.size]
        samples = sorted(
            (time_us, int(power_mw))
            for time_us, power_mw in layout.iter_unpack(buffer)
            if time_us > seen_us
        )
        if samples:
            offset_us = samples[-1][0] - time.time() * 1e6
            if abs(offset_us) > _LARGEST_OFFSET_US:
                raise UnreadableError(
                    f"the driver's timestamps are {offset_us / 1e6:.0f} s off the wall clock, so "
                    "they do not count from the epoch"
                )
        return samples

    def _why_not(self, gpu: int) -> str | None:
        try:
            self._since(gpu, 0)
        except (self._nvml.NVMLError, UnreadableError) as error:
            return str(error)
        return None


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


class Activity:
    """What the parts of a GPU did between two readings, by NVML's GPM (Hopper and later).

    A reading takes 0.3 ms for the counters and 1.5 ms to compare them, on an H100 under load.
    """

    #: nvml.h's NVML_GPM_METRIC_ of SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL and DRAM_BW_UTIL, in %,
    #: and of PCIE_TX_PER_SEC and PCIE_RX_PER_SEC, in MiB/s; with the factor to our units
    _METRICS = ((2, 1), (3, 1), (5, 1), (10, 1), (20, 1 << 20), (21, 1 << 20))

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples: list[Any] = []
        self._has_before = False

    def read(self) -> list[float | UnreadableError | None]:
        """The metrics since the reading before; None at the first. Raises NVMLError, and
        UnreadableError where driver or GPU have no GPM."""
        nvml = self._nvml
        if not self._samples:
            self._samples = self._open()
        before, now = self._samples
        nvml.nvmlGpmSampleGet(self._handle, now)
        self._samples = [now, before]
        if not self._has_before:
            self._has_before = True
            return [None] * len(self._METRICS)
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(self._METRICS)
        asked.sample1, asked.sample2 = before, now
        for place, (metric, _) in enumerate(self._METRICS):
            asked.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(asked)
        return [
            asked.metrics[place].value * factor
            if asked.metrics[place].nvmlReturn == nvml.NVML_SUCCESS
            else UnreadableError(str(nvml.NVMLError(asked.metrics[place].nvmlReturn)))
            for place, (_, factor) in enumerate(self._METRICS)
        ]

    def _open(self) -> list[Any]:
        nvml = self._nvml
        if getattr(nvml, "nvmlGpmQueryDeviceSupport", None) is None:
            raise UnreadableError("the binding of NVML is older than GPM")
        if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            raise UnreadableError("the GPU has no GPM, which came with Hopper")
        return [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
