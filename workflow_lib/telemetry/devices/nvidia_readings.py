"""The readings of an NVIDIA GPU: the NVML call of each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

from workflow_lib.telemetry.devices.nvidia_collected import Activity
from workflow_lib.telemetry.devices.nvml import (
    MEMORY_POWER,
    MEMORY_TEMPERATURE,
    NVLINK_RECEIVED,
    NVLINK_SENT,
    POWER_CAP,
    POWER_INSTANT,
    all_links_reader,
    fields_reader,
)
from workflow_lib.telemetry.polling import Poll
from workflow_lib.telemetry.source import UnreadableError

#: what :class:`Activity` tells
_ACTIVITY = (
    *("sm_active_percent", "sm_occupancy_percent", "tensor_active_percent", "dram_active_percent"),
    *("pcie_sent_bytes_per_s", "pcie_received_bytes_per_s"),
)


def tick_polls(nvml: ModuleType, handle: Any) -> list[Poll]:
    """The calls that fill GPU_SAMPLES. Power, temperature, SM clock and event bits are read at
    every tick, so they call the driver's library directly. Temperature follows the load within a
    second: of readings every 0.5 s, the mean of a run may be off by 0.7 °C.
    """
    core, sm, memory = nvml.NVML_TEMPERATURE_GPU, nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
    power_mw = _direct(nvml, handle, "nvmlDeviceGetPowerUsage", ctypes.c_uint)
    core_c = _direct(nvml, handle, "nvmlDeviceGetTemperature", ctypes.c_uint, core)
    sm_mhz = _direct(nvml, handle, "nvmlDeviceGetClockInfo", ctypes.c_uint, sm)
    return [
        Poll(("power_w",), lambda: (power_mw() / 1e3,)),
        Poll(("sm_clock_mhz",), lambda: (sm_mhz(),)),
        Poll(("event_reasons",), _event_reasons(nvml, handle)),
        Poll(("temperature_c",), lambda: (core_c(),)),
        Poll(("memory_clock_mhz",), lambda: (nvml.nvmlDeviceGetClockInfo(handle, memory),)),
        Poll(("utilisation_percent",), lambda: (nvml.nvmlDeviceGetUtilizationRates(handle).gpu,)),
    ]


def _direct(
    nvml: ModuleType,
    handle: Any,
    name: str,
    kind: type[ctypes.c_uint] | type[ctypes.c_ulonglong],
    *arguments: int,
) -> Callable[[], int]:
    """A function that reads one number from the driver's library, three times as fast as pynvml."""
    function = getattr(nvml.nvmlLib, name, None)
    value = kind()
    reference = ctypes.byref(value)

    def read() -> int:
        if function is None:
            raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if code := function(handle, *arguments, reference):
            raise nvml.NVMLError(code)
        return value.value

    return read


def _event_reasons(nvml: ModuleType, handle: Any) -> Callable[[], tuple[int]]:
    # Drivers before 535 have this call only under its older name.
    name = "nvmlDeviceGetCurrentClocksEventReasons"
    if getattr(nvml.nvmlLib, name, None) is None:
        name = "nvmlDeviceGetCurrentClocksThrottleReasons"
    read = _direct(nvml, handle, name, ctypes.c_ulonglong)
    return lambda: (read(),)


def counter_polls(
    nvml: ModuleType, handle: Any, slowdown: tuple[int, int, int] | None, driver: str
) -> list[Poll]:
    """The calls that fill GPU_COUNTERS. ``slowdown`` are the field ids of the
    driver's slowdown counters; None if it has none.
    """

    def call(name: str, *arguments: Any) -> Any:
        function = getattr(nvml, name, None)
        if function is None:
            # The binding is older than the call.
            raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return function(handle, *arguments)

    def ecc_errors(kind: int) -> tuple[int]:
        return (call("nvmlDeviceGetTotalEccErrors", kind, nvml.NVML_VOLATILE_ECC),)

    read_throttle = fields_reader(
        nvml, handle, (POWER_CAP, *(slowdown or ())), lambda nanoseconds: nanoseconds / 1e9
    )
    lacking = UnreadableError(f"driver {driver} has no cumulative slowdown counters")
    return [
        Poll(
            ("energy_j",),
            lambda: (call("nvmlDeviceGetTotalEnergyConsumption") / 1e3,),
            at_changes=True,
        ),
        Poll(
            (
                *("throttle_power_cap_s", "throttle_sw_thermal_s"),
                *("throttle_hw_thermal_s", "throttle_power_brake_s"),
            ),
            lambda: [*read_throttle(), *([] if slowdown else [lacking] * 3)],
        ),
        Poll(
            ("power_instant_w",),
            fields_reader(nvml, handle, (POWER_INSTANT,), lambda mw: mw / 1e3),
        ),
        Poll(_ACTIVITY, Activity(nvml, handle).read),
        Poll(
            ("memory_power_w",),
            fields_reader(nvml, handle, (MEMORY_POWER,), lambda mw: mw / 1e3),
        ),
        Poll(("gpu_fan_speed_percent",), lambda: (call("nvmlDeviceGetFanSpeed"),)),
        Poll(
            ("memory_temperature_c",),
            fields_reader(nvml, handle, (MEMORY_TEMPERATURE,)),
        ),
        Poll(("thermal_margin_c",), lambda: (call("nvmlDeviceGetMarginTemperature"),)),
        Poll(
            ("gpu_link_sent_bytes", "gpu_link_received_bytes"),
            all_links_reader(nvml, handle, (NVLINK_SENT, NVLINK_RECEIVED)),
        ),
        Poll(("memory_used_bytes",), lambda: (call("nvmlDeviceGetMemoryInfo").used,)),
        Poll(("ecc_corrected_errors",), lambda: ecc_errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
        Poll(
            ("ecc_uncorrected_errors",),
            lambda: ecc_errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        ),
    ]
