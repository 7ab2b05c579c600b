"""AMD GPUs through AMD SMI (``amdsmi``). NEVER TRIED ON HARDWARE: only against a model of its API.

The API is that of ROCm 6.2 to 7 (ROCm/amdsmi, py-interface). What differs between GPUs:

* MI250 has two dies ("GPUs") in a package and one power sensor, which the even die reports. The
  odd die's power and energy are empty, so that a sum over GPUs is right.
* MI2xx reports ``average_socket_power``, MI3xx ``current_socket_power``; the other one is "N/A".
* There is no cumulative throttle time in seconds: MI2xx has only a momentary status, MI3xx
  percentages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from workflow_lib.telemetry.source import Poll, PolledSource, TelemetryError, UnreadableError
from workflow_lib.telemetry.visible import visible_gpus

_THROTTLE_REASON = (
    "AMD SMI has no cumulative throttle time in seconds: MI2xx reports a momentary status, "
    "MI3xx percentages"
)
_MISSING = {
    "throttle_power_cap_s": _THROTTLE_REASON,
    "throttle_sw_thermal_s": _THROTTLE_REASON,
    "throttle_hw_thermal_s": _THROTTLE_REASON,
    "throttle_power_brake_s": _THROTTLE_REASON,
}
#: Bits of indep_throttle_status (linux, drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h) → the NVML
#: bit that means the same: package power limits; current limits (a hardware slowdown); any
#: temperature; PROCHOT, an external thermal alarm
_EVENT_BITS = (
    (range(0, 8), 0x4),
    (range(16, 24), 0x8),
    (range(32, 46), 0x20),
    (range(46, 48), 0x40),
)
#: a limit above this is in microwatts, as AMD SMI has it since ROCm 6; before, it was in watts
_LARGEST_LIMIT_W = 10_000


class AmdSource(PolledSource):
    """The AMD GPUs (dies) that the job sees, in the order of ``ROCR_`` and ``HIP_VISIBLE_DEVICES``.

    Dies share packages in the driver's order: with two in a package, 0 and 1, 2 and 3, and so on.
    """

    def __init__(self, gpus_per_package: int) -> None:
        """Raises TelemetryError where AMD SMI, its GPUs or their power are not to be had."""
        try:
            import amdsmi
        except (ImportError, KeyError, OSError, AttributeError) as error:
            # Without ROCm's libamd_smi.so the package fails with whatever it meets first.
            raise TelemetryError(
                "AMD telemetry needs the site's amdsmi Python package, of the same version as its "
                f"ROCm ({type(error).__name__}: {error}); put ROCm's share/amd_smi on PYTHONPATH "
                "and its lib on LD_LIBRARY_PATH"
            ) from None
        self._smi: ModuleType = amdsmi
        try:
            amdsmi.amdsmi_init()
        except amdsmi.AmdSmiException as error:
            raise TelemetryError(
                f"AMD SMI did not start: {_text(error)}; is this a node with AMD GPUs and the "
                "amdgpu driver, and is /dev/kfd visible in the container?"
            ) from None
        try:
            self._open(gpus_per_package)
        except amdsmi.AmdSmiException as error:
            amdsmi.amdsmi_shut_down()
            raise TelemetryError(
                f"AMD SMI could not list this node's GPUs: {_text(error)}"
            ) from None
        except TelemetryError:
            amdsmi.amdsmi_shut_down()
            raise

    def close(self) -> None:
        """Shut AMD SMI down."""
        self._smi.amdsmi_shut_down()

    def _open(self, gpus_per_package: int) -> None:
        smi = self._smi
        every = list(smi.amdsmi_get_processor_handles())
        uuids = [str(smi.amdsmi_get_gpu_device_uuid(handle)) for handle in every]
        # HIP takes CUDA's variable where its own is not set.
        second = (
            "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in os.environ else "CUDA_VISIBLE_DEVICES"
        )
        indices = visible_gpus(uuids, ("ROCR_VISIBLE_DEVICES", second), os.environ)
        for index in indices:
            sensor = index - index % gpus_per_package
            if sensor not in indices:
                raise TelemetryError(
                    f"GPU {index} shares a package with GPU {sensor}, which reports the power of "
                    "both but is not visible to the job; give the job whole packages"
                )
        gpus = [self._describe(i, every[i], uuids[i], gpus_per_package) for i in indices]
        super().__init__(
            name="amd",
            gpus=gpus,
            polls=[
                self._polls_of(every[i], entry["reports_power"])
                for i, entry in zip(indices, gpus, strict=True)
            ],
            columns=_COLUMNS,
            failures=(smi.AmdSmiException,),
            missing=_MISSING,
        )

    def _describe(
        self, index: int, handle: Any, uuid: str, gpus_per_package: int
    ) -> dict[str, Any]:
        smi = self._smi
        asic = smi.amdsmi_get_gpu_asic_info(handle)
        reports_power = index % gpus_per_package == 0
        return {
            "name": asic["market_name"],
            "uuid": uuid,
            "serial": asic.get("asic_serial"),
            "power_limit_w": self._power_limit_w(handle) if reports_power else None,
            "driver_version": smi.amdsmi_get_gpu_driver_info(handle).get("driver_version"),
            "index": index,
            "package": index // gpus_per_package,
            "reports_power": reports_power,
        }

    def _power_limit_w(self, handle: Any) -> float | None:
        try:
            limit = self._smi.amdsmi_get_power_cap_info(handle)["power_cap"]
        except self._smi.AmdSmiException:
            return None  # a description only: nothing is measured against it
        if not isinstance(limit, int) or limit <= 0:
            return None
        return limit / 1e6 if limit > _LARGEST_LIMIT_W else float(limit)

    def _polls_of(self, handle: Any, reports_power: bool) -> list[Poll]:
        smi = self._smi
        current = smi.AmdSmiTemperatureMetric.CURRENT
        # The hotspot (junction) is what the firmware throttles on; on MI3xx it is the only one.
        sensors = smi.AmdSmiTemperatureType
        clocks, vram = smi.AmdSmiClkType, smi.AmdSmiMemoryType.VRAM

        def temperature(sensor: Any) -> Callable[[], tuple[float | int]]:
            return lambda: (_number(smi.amdsmi_get_temp_metric(handle, sensor, current)),)

        def clock(kind: Any) -> Callable[[], tuple[float | int]]:
            return lambda: (_first(smi.amdsmi_get_clock_info(handle, kind), "clk", "cur_clk"),)

        polls = [
            Poll(("temperature_c",), temperature(sensors.HOTSPOT)),
            Poll(("memory_temperature_c",), temperature(sensors.VRAM), slow=True),
            Poll(("sm_clock_mhz",), clock(clocks.GFX)),
            Poll(("memory_clock_mhz",), clock(clocks.MEM)),
            Poll(
                ("utilisation_percent",),
                lambda: (_first(smi.amdsmi_get_gpu_activity(handle), "gfx_activity"),),
            ),
            Poll(("event_reasons",), lambda: (_event_reasons(smi, handle),)),
            Poll(
                ("memory_used_bytes",),
                lambda: (_number(smi.amdsmi_get_gpu_memory_usage(handle, vram)),),
                slow=True,
            ),
        ]
        if reports_power:
            polls += [
                Poll(("power_w",), lambda: (_power_w(smi.amdsmi_get_power_info(handle)),)),
                Poll(("energy_j",), lambda: (_energy_j(smi, handle),), slow=True),
            ]
        return polls


_COLUMNS = (
    "power_w",
    "energy_j",
    "temperature_c",
    "memory_temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "utilisation_percent",
    "memory_used_bytes",
    "event_reasons",
)


def _power_w(info: Mapping[str, Any]) -> float | int:
    return _first(info, "current_socket_power", "average_socket_power", "socket_power")


def _energy_j(smi: ModuleType, handle: Any) -> float:
    """The accumulator, in units of counter_resolution microjoules (15.3 on MI2xx and MI3xx)."""
    info = smi.amdsmi_get_energy_count(handle)
    # The key was "power" before ROCm 6.2.1.
    return _first(info, "energy_accumulator", "power") * float(info["counter_resolution"]) / 1e6


def _event_reasons(smi: ModuleType, handle: Any) -> int:
    """The momentary throttle status, in NVML's bits."""
    status = smi.amdsmi_get_gpu_metrics_info(handle).get("indep_throttle_status")
    if isinstance(status, bool) or not isinstance(status, int):
        # Some releases of the binding reduce the bits to a yes or no, which names no reason.
        raise UnreadableError("this amdsmi does not tell the reasons for throttling")
    reasons = 0
    for bits, event in _EVENT_BITS:
        if any(status >> bit & 1 for bit in bits):
            reasons |= event
    return reasons


def _number(value: Any) -> float | int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnreadableError(f"the driver returned {value!r}")
    return value


def _first(info: Mapping[str, Any], *keys: str) -> float | int:
    """The first of the keys that holds a number: not "N/A", nor all bits set, nor 0xFFFF."""
    for key in keys:
        value = info.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if value in (0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF):
            continue
        return value
    raise UnreadableError(f"no number under {' or '.join(keys)}")


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
