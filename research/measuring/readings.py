"""Readings of NVML: what a call costs, and when its value changes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np

from workflow_lib.telemetry.source import visible_gpus

_CALLS, _LIMIT_S = 200, 0.6
_ALL_LINKS = 0xFFFFFFFF

#: gpu → what the driver answers
Reading = Callable[[int], Any]
#: when a new value was there (wall clock, s), and the value
Change = tuple[float, float]

#: functions of NVML that telemetry calls or avoids; strings among arguments name its constants
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "power": ("nvmlDeviceGetPowerUsage",),
    "core temperature": ("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    "SM clock": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    "memory clock": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
    "utilisation": ("nvmlDeviceGetUtilizationRates",),
    "event bits": ("nvmlDeviceGetCurrentClocksEventReasons",),
    "memory in use": ("nvmlDeviceGetMemoryInfo",),
    "energy counter": ("nvmlDeviceGetTotalEnergyConsumption",),
    "margin to slowdown": ("nvmlDeviceGetMarginTemperature",),
    "driver's samples": ("nvmlDeviceGetSamples", "NVML_TOTAL_POWER_SAMPLES", 0),
    "ECC totals": ("nvmlDeviceGetTotalEccErrors", 0, 0),
    "PCIe throughput": ("nvmlDeviceGetPcieThroughput", "NVML_PCIE_UTIL_TX_BYTES"),
}
#: fields of NVML, with their scopes where they have any
_FIELDS: dict[str, list[Any]] = {
    "momentary power": [186],
    "throttle times": [74, 269, 270, 271],
    "memory temperature": [82],
    "PCIe bytes": [197, 198],
    "NVLink bytes, all links": [(138, _ALL_LINKS), (139, _ALL_LINKS)],
}
#: readings whose changes are looked for
POWER, ENERGY, SAMPLES, MOMENTARY = (
    "power",
    "energy counter",
    "driver's samples",
    "momentary power",
)
POLLED = (POWER, ENERGY, SAMPLES)


@dataclass(frozen=True)
class Cost:
    """Wall and CPU time of a call in microseconds, and why the driver declined it, if it did."""

    wall_p50_us: float
    wall_p99_us: float
    cpu_p50_us: float
    calls: int
    declined: str


def open_handles() -> tuple[Any, list[Any]]:
    """The binding, initialised, and the handles of the GPUs that CUDA sees, in its order (by PCI
    bus; set CUDA_DEVICE_ORDER=PCI_BUS_ID).
    """
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    chosen = visible_gpus(uuids, ("CUDA_VISIBLE_DEVICES",), os.environ)
    return pynvml, [handles[index] for index in chosen]


def nvml_readings(nvml: Any, handles: list[Any]) -> dict[str, Reading]:
    """Name → call, with the GPU's number."""

    def of_function(name: str, *arguments: Any) -> Reading:
        function = getattr(nvml, name)
        known = [getattr(nvml, each) if isinstance(each, str) else each for each in arguments]
        return lambda gpu: function(handles[gpu], *known)

    def of_fields(asked: list[Any]) -> Reading:
        return lambda gpu: nvml.nvmlDeviceGetFieldValues(handles[gpu], asked)

    return {
        **{name: of_function(*function) for name, function in _FUNCTIONS.items()},
        **{name: of_fields(fields) for name, fields in _FIELDS.items()},
    }


def cost_of(nvml: Any, reading: Reading, gpus: int) -> Cost:
    """What a call costs, over all GPUs in turn: 200 calls, or as many as 0.6 s hold but 3.

    A call that the driver declines costs as well.
    """
    wall: list[float] = []
    cpu: list[float] = []
    declined = ""
    end = time.monotonic() + _LIMIT_S
    while len(wall) < _CALLS and (len(wall) < 3 or time.monotonic() < end):
        cpu_before, before = time.process_time(), time.perf_counter()
        try:
            reading(len(wall) % gpus)
        except nvml.NVMLError as error:
            declined = str(error)
        wall.append(1e6 * (time.perf_counter() - before))
        cpu.append(1e6 * (time.process_time() - cpu_before))
    typical, highest = np.quantile(wall, (0.5, 0.99)).tolist()
    return Cost(typical, highest, statistics.median(cpu), len(wall), declined)


def changes_of(nvml: Any, name: str, handle: Any, stop: Event) -> list[Change]:
    """What changed of one of ``POLLED``, or of ``MOMENTARY``, until ``stop`` is set: W, or J of the
    counter.

    It is read at most about 2 000 times a second, and a change lies half-way between the last
    reading of the old value and the first of the new one. Raises the binding's NVMLError.
    """
    if name == SAMPLES:
        return _driver_samples(nvml, handle, stop)
    read = nvml_readings(nvml, [handle])[name]
    changes: list[Change] = []
    last: Change | None = None
    while not stop.wait(0.0005):
        before = time.time()
        answer = read(0)
        if name in _FIELDS:
            (field,) = answer
            if field.nvmlReturn:
                raise nvml.NVMLError(field.nvmlReturn)
            answer = field.value.uiVal
        value = answer / 1e3
        now = (before + time.time()) / 2
        if last is not None and value != last[1]:
            changes.append(((last[0] + now) / 2, value))
        last = (now, value)
    return changes


def _driver_samples(nvml: Any, handle: Any, stop: Event) -> list[Change]:
    """The driver keeps somewhat more than two seconds, so they are fetched once a second."""
    found: dict[int, float] = {}
    began_us = newest_us = int(time.time() * 1e6)
    while True:
        ending = stop.wait(1.0)
        try:
            _, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_TOTAL_POWER_SAMPLES, newest_us)
        except nvml.NVMLError_NotFound:
            samples = []  # nothing new
        found |= {each.timeStamp: each.sampleValue.uiVal / 1e3 for each in samples}
        newest_us = max(found, default=newest_us)
        if ending:
            return [(us / 1e6, watts) for us, watts in sorted(found.items()) if us > began_us]
