"""NVIDIA GPUs through NVML (``pynvml``).

What a call costs was measured on H200: power (a 1 s average on Hopper), temperature, clocks,
utilisation and event reasons 1–2 µs each, so they are read at every tick; the energy counter 3.7 ms
and the memory temperature up to 2 ms, so they are read about once a second, for one GPU at a time.
The cumulative throttle times cost 1 µs to 2 ms and are read at every tick where that takes little
of it, else with the others. Nothing here blocks: no PCIe throughput (21 ms a direction), no process
list, no fans.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from workflow_lib.telemetry.source import Poll, PolledSource, TelemetryError, UnreadableError
from workflow_lib.telemetry.visible import visible_gpus

#: fields of nvmlDeviceGetFieldValues; the power cap's and the memory temperature's ids are settled
_FIELD_MEMORY_TEMPERATURE = 82
_FIELD_POWER_CAP = 74
#: Ids of the cumulative SW thermal, HW thermal and power-brake slowdown. NVIDIA has moved them:
#: the bindings of drivers 575 to 580.65 have them at 251–253, where those of 570 and of 580.82 on
#: have power smoothing (an H100 with driver 580.159 answers 269–271 and declines 251–253). The
#: driver counts, not the binding, so both are tried on it.
_EARLY_SLOWDOWN_FIELDS = (251, 252, 253)
_LATE_SLOWDOWN_FIELDS = (269, 270, 271)
_LATE_SINCE_DRIVER = (580, 82)
_THROTTLE_COLUMNS = (
    "throttle_power_cap_s",
    "throttle_sw_thermal_s",
    "throttle_hw_thermal_s",
    "throttle_power_brake_s",
)
#: throttle times are read at every tick where all GPUs' together take no more of it than this
_THROTTLE_TICK_SHARE = 0.1


class NvidiaSource(PolledSource):
    """The NVIDIA GPUs that the job sees, in the order of ``CUDA_VISIBLE_DEVICES``."""

    def __init__(self, sample_rate_hz: float) -> None:
        """Raises TelemetryError where there is no binding, no driver or no power reading."""
        try:
            import pynvml
        except ImportError as error:
            raise TelemetryError(
                f"NVIDIA telemetry needs the Python package nvidia-ml-py: {error}; install it in "
                "the environment that the telemetry step uses"
            ) from None
        self._nvml: ModuleType = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise TelemetryError(
                f"NVML did not start: {error}; is this a node with NVIDIA GPUs and a driver, and "
                "are they visible in the container?"
            ) from None
        try:
            self._open(sample_rate_hz)
        except pynvml.NVMLError as error:
            pynvml.nvmlShutdown()
            raise TelemetryError(f"NVML could not list this node's GPUs: {error}") from None
        except TelemetryError:
            pynvml.nvmlShutdown()
            raise

    def close(self) -> None:
        """Shut NVML down."""
        self._nvml.nvmlShutdown()

    def _open(self, sample_rate_hz: float) -> None:
        nvml = self._nvml
        every = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in every]
        indices = visible_gpus(uuids, ("CUDA_VISIBLE_DEVICES",), os.environ)
        driver = nvml.nvmlSystemGetDriverVersion()
        handles = [every[index] for index in indices]
        slowdown = _slowdown_fields(nvml, handles, driver)
        missing: dict[str, str] = {}
        fields: tuple[int, ...] = (_FIELD_POWER_CAP,)
        if slowdown is None:
            reason = f"driver {driver} has no cumulative slowdown counters"
            missing = dict.fromkeys(_THROTTLE_COLUMNS[1:], reason)
        else:
            fields += slowdown
        slow_throttle = _is_slow(nvml, handles, fields, 1 / sample_rate_hz)
        super().__init__(
            name="nvidia",
            gpus=[
                self._describe(index, handle, uuids[index], driver)
                for index, handle in zip(indices, handles, strict=True)
            ],
            polls=[self._polls_of(handle, fields, slow_throttle) for handle in handles],
            columns=[column for column in _COLUMNS if column not in missing],
            failures=(nvml.NVMLError,),
            missing=missing,
        )

    def _describe(self, index: int, handle: Any, uuid: str, driver: str) -> dict[str, Any]:
        nvml = self._nvml
        try:
            serial = nvml.nvmlDeviceGetSerial(handle)
        except nvml.NVMLError:
            serial = None  # not every board has one
        try:
            limit_w = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
        except nvml.NVMLError:
            limit_w = None
        return {
            "name": nvml.nvmlDeviceGetName(handle),
            "uuid": uuid,
            "serial": serial,
            "power_limit_w": limit_w,
            "driver_version": driver,
            "index": index,
            "package": index,
            "reports_power": True,
        }

    def _polls_of(self, handle: Any, throttle: tuple[int, ...], slow_throttle: bool) -> list[Poll]:
        nvml = self._nvml
        sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
        core = nvml.NVML_TEMPERATURE_GPU
        return [
            Poll(("power_w",), lambda: (nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,)),
            Poll(("temperature_c",), lambda: (nvml.nvmlDeviceGetTemperature(handle, core),)),
            Poll(("sm_clock_mhz",), lambda: (nvml.nvmlDeviceGetClockInfo(handle, sm),)),
            Poll(("memory_clock_mhz",), lambda: (nvml.nvmlDeviceGetClockInfo(handle, memory),)),
            Poll(
                ("utilisation_percent",), lambda: (nvml.nvmlDeviceGetUtilizationRates(handle).gpu,)
            ),
            Poll(("event_reasons",), lambda: (_event_reasons(nvml, handle),)),
            Poll(
                _THROTTLE_COLUMNS[: len(throttle)],
                lambda: [
                    value if isinstance(value, UnreadableError) else value / 1e9
                    for value in _field_values(nvml, handle, throttle)
                ],
                slow=slow_throttle,
            ),
            Poll(
                ("energy_j",),
                lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,),
                slow=True,
            ),
            Poll(
                ("memory_temperature_c",),
                lambda: _field_values(nvml, handle, (_FIELD_MEMORY_TEMPERATURE,)),
                slow=True,
            ),
            Poll(
                ("memory_used_bytes",),
                lambda: (nvml.nvmlDeviceGetMemoryInfo(handle).used,),
                slow=True,
            ),
        ]


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
    *_THROTTLE_COLUMNS,
)


def _event_reasons(nvml: ModuleType, handle: Any) -> int:
    # Drivers before 535 know this call by its older name only.
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError_FunctionNotFound:
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _field_values(
    nvml: ModuleType, handle: Any, fields: tuple[int, ...]
) -> Sequence[float | int | UnreadableError]:
    """One call for all the fields: each one's value at its true width, or what it failed of."""
    values: list[float | int | UnreadableError] = []
    for field in nvml.nvmlDeviceGetFieldValues(handle, list(fields)):
        if field.nvmlReturn != nvml.NVML_SUCCESS:
            values.append(UnreadableError(str(nvml.NVMLError(field.nvmlReturn))))
        elif (member := _MEMBERS.get(field.valueType)) is None:
            values.append(UnreadableError(f"unknown NVML value type {field.valueType}"))
        else:
            values.append(getattr(field.value, member))
    return values


#: nvmlValueType_t → the member of the union that holds the value
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_UNSIGNED_LONG_LONG = 3


def _slowdown_fields(
    nvml: ModuleType, handles: Sequence[Any], driver: str
) -> tuple[int, int, int] | None:
    """The ids under which this driver keeps the slowdown counters, None where it has none.

    A counter is a 64-bit number that can be read; the power-smoothing settings, which other drivers
    keep under the same ids, are not. Should a driver answer to both, its version decides.
    """
    if not handles:
        return None

    def are_counters(fields: tuple[int, int, int]) -> bool:
        try:
            values = nvml.nvmlDeviceGetFieldValues(handles[0], list(fields))
        except nvml.NVMLError:
            return False
        return all(
            v.nvmlReturn == nvml.NVML_SUCCESS and v.valueType == _UNSIGNED_LONG_LONG for v in values
        )

    major, minor = (*(int(p) for p in driver.split(".")[:2] if p.isdecimal()), 0, 0)[:2]
    candidates = [_EARLY_SLOWDOWN_FIELDS, _LATE_SLOWDOWN_FIELDS]
    if (major, minor) >= _LATE_SINCE_DRIVER:
        candidates.reverse()
    return next((fields for fields in candidates if are_counters(fields)), None)


def _is_slow(
    nvml: ModuleType, handles: Sequence[Any], fields: tuple[int, ...], period_s: float
) -> bool:
    """Whether reading the fields of all GPUs at every tick would take too much of it."""
    costs: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        for handle in handles:
            try:
                nvml.nvmlDeviceGetFieldValues(handle, list(fields))
            except nvml.NVMLError:
                return True
        costs.append(time.perf_counter() - started)
    return statistics.median(costs) > _THROTTLE_TICK_SHARE * period_s
