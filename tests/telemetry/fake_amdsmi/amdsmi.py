"""A stand-in for ROCm's ``amdsmi``, with the calls, keys and units of its Python interface.

It plays one node of MI250 with two packages (four dies), or of another kind as FAKE_AMDSMI says:
"mi300" has the other power key, "bits" tells throttle reasons, "keyerror" fails at import as the
package does where ROCm's library is missing, "noinit" has no driver.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Any

KIND = os.environ.get("FAKE_AMDSMI", "")
if KIND == "keyerror":
    raise KeyError("libamd_smi.so")


class AmdSmiException(Exception):
    """The base of all errors."""


class AmdSmiLibraryException(AmdSmiException):
    """An error with a code."""

    def __str__(self) -> str:
        return f"Error code:\n\t{self.args[0]} | {self.args[1]}"


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1
    VRAM = 2


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiClkType(IntEnum):
    GFX = 0
    MEM = 4


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


_calls = {"energy": 0}


def amdsmi_init() -> None:
    if KIND == "noinit":
        raise AmdSmiLibraryException(34, "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded")


def amdsmi_shut_down() -> None:
    pass


def amdsmi_get_processor_handles() -> list[int]:
    return [0, 1, 2, 3]


def amdsmi_get_gpu_device_uuid(handle: int) -> str:
    return f"{handle:02x}ff740c-0000-1000-80fd-2a1f0a5b39{handle:02x}"


def amdsmi_get_gpu_asic_info(handle: int) -> dict[str, Any]:
    name = "AMD Instinct MI300X" if KIND == "mi300" else "AMD INSTINCT MI250 (MCM) OAM AC MBA"
    return {"market_name": name, "asic_serial": f"0x{handle // 2:016X}"}


def amdsmi_get_gpu_driver_info(handle: int) -> dict[str, str]:
    return {"driver_name": "amdgpu", "driver_version": "6.8.5", "driver_date": "2015/01/01"}


def amdsmi_get_power_cap_info(handle: int) -> dict[str, int]:
    return {"power_cap": 500_000_000}


def amdsmi_get_power_info(handle: int) -> dict[str, Any]:
    if KIND == "mi300":
        return {"current_socket_power": 717, "average_socket_power": "N/A"}
    return {"current_socket_power": "N/A", "average_socket_power": 0 if handle % 2 else 94}


def amdsmi_get_energy_count(handle: int) -> dict[str, Any]:
    _calls["energy"] += 1
    ticks = 0 if handle % 2 else 1_000_000 * _calls["energy"]
    return {"energy_accumulator": ticks, "counter_resolution": 15.3, "timestamp": 1}


def amdsmi_get_temp_metric(
    handle: int, sensor: AmdSmiTemperatureType, metric: AmdSmiTemperatureMetric
) -> int:
    return {AmdSmiTemperatureType.HOTSPOT: 61, AmdSmiTemperatureType.VRAM: 55}[sensor] + handle


def amdsmi_get_clock_info(handle: int, kind: AmdSmiClkType) -> dict[str, Any]:
    clock = {AmdSmiClkType.GFX: 1700, AmdSmiClkType.MEM: 1600}[kind]
    return {"clk": clock, "min_clk": 500, "max_clk": 1700}


def amdsmi_get_gpu_activity(handle: int) -> dict[str, Any]:
    return {"gfx_activity": 99, "umc_activity": 40, "mm_activity": "N/A"}


def amdsmi_get_gpu_memory_usage(handle: int, kind: AmdSmiMemoryType) -> int:
    return 10_737_418_240


def amdsmi_get_gpu_metrics_info(handle: int) -> dict[str, Any]:
    # Package power (bit 1) and hotspot temperature (bit 36).
    return {"indep_throttle_status": 1 << 1 | 1 << 36 if KIND == "bits" else True}
