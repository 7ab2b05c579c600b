"""Every reading of NVML that telemetry makes or avoids, as a call on one GPU's handle."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.measuring.pairs import percentile
from research.measuring.polling import field_value

_ALL_LINKS = 0xFFFFFFFF
_CALLS, _LIMIT_S = 200, 0.6

#: gpu → what the driver answers
Reading = Callable[[int], Any]


@dataclass(frozen=True)
class Cost:
    """Wall and CPU time of a call in microseconds, and what it answered."""

    wall_p50_us: float
    wall_p99_us: float
    cpu_p50_us: float
    cpu_p99_us: float
    calls: int
    declined: int
    answer: str


def cost_of(nvml: Any, reading: Reading, gpus: int) -> Cost:
    """What a call costs, over all GPUs in turn: 200 calls, or as many as 0.6 s hold but 3.

    A call that the driver declines costs as well; the answer then is the driver's message.
    """
    answer = _answer(nvml, reading, 0)
    declined, wall, cpu = 0, [], []
    end = time.monotonic() + _LIMIT_S
    for number in range(_CALLS):
        if number >= 3 and time.monotonic() > end:
            break
        cpu_before = time.process_time()
        before = time.perf_counter()
        try:
            reading(number % gpus)
        except nvml.NVMLError:
            declined += 1
        after = time.perf_counter()
        cpu.append(1e6 * (time.process_time() - cpu_before))
        wall.append(1e6 * (after - before))
    return Cost(
        percentile(wall, 0.5),
        percentile(wall, 0.99),
        percentile(cpu, 0.5),
        percentile(cpu, 0.99),
        len(wall),
        declined,
        answer,
    )


def _answer(nvml: Any, reading: Reading, gpu: int) -> str:
    try:
        answer = reading(gpu)
        if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], list):
            samples = answer[1]  # nvmlDeviceGetSamples
            if len(samples) < 2:
                return f"{len(samples)} samples"
            span_ms = (samples[-1].timeStamp - samples[0].timeStamp) / 1e3
            return f"{len(samples)} samples, {span_ms / (len(samples) - 1):.1f} ms apart"
        if hasattr(answer, "_length_"):
            return ", ".join(_field(nvml, field) for field in answer)
        for name in ("used", "gpu", "violationTime"):
            if hasattr(answer, name):
                return f"{name} {getattr(answer, name)}"
    except nvml.NVMLError as error:
        return str(error)
    return str(answer)[:60]


def _field(nvml: Any, field: Any) -> str:
    try:
        return f"{field_value(nvml, field)} (type {field.valueType})"
    except nvml.NVMLError as error:
        return str(error)


def nvml_readings(nvml: Any, handles: list[Any]) -> dict[str, Reading]:
    """Name → call. The calls take the GPU's number."""

    def call(name: str, *arguments: Any) -> Reading:
        function = getattr(nvml, name)
        return lambda gpu: function(handles[gpu], *arguments)

    def fields(*ids: int | tuple[int, int]) -> Reading:
        asked = list(ids)
        return lambda gpu: nvml.nvmlDeviceGetFieldValues(handles[gpu], asked)

    def newer_samples(gpu: int) -> Any:
        since_us = int(1e6 * (time.time() - 1.0))
        return nvml.nvmlDeviceGetSamples(handles[gpu], nvml.NVML_TOTAL_POWER_SAMPLES, since_us)

    wanted: dict[str, Callable[[], Reading]] = {
        "nothing": lambda: lambda gpu: None,
        "power usage": lambda: call("nvmlDeviceGetPowerUsage"),
        "temperature": lambda: call("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "temperature (V)": lambda: call("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU),
        "SM clock": lambda: call("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "memory clock": lambda: call("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "utilisation": lambda: call("nvmlDeviceGetUtilizationRates"),
        "event reasons": lambda: call("nvmlDeviceGetCurrentClocksEventReasons"),
        "memory info": lambda: call("nvmlDeviceGetMemoryInfo"),
        "energy counter": lambda: call("nvmlDeviceGetTotalEnergyConsumption"),
        "margin temperature": lambda: call("nvmlDeviceGetMarginTemperature"),
        "samples, all kept": lambda: call("nvmlDeviceGetSamples", nvml.NVML_TOTAL_POWER_SAMPLES, 0),
        "samples of the last second": lambda: newer_samples,
        "ECC corrected": lambda: call("nvmlDeviceGetTotalEccErrors", 0, 0),
        "ECC uncorrected": lambda: call("nvmlDeviceGetTotalEccErrors", 1, 0),
        "violation status": lambda: call(
            "nvmlDeviceGetViolationStatus", nvml.NVML_PERF_POLICY_POWER
        ),
        "PCIe throughput": lambda: call(
            "nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_TX_BYTES
        ),
        "event wait (0)": lambda: _event_wait(nvml, handles),
        "field 185 power average": lambda: fields(185),
        "field 186 power instant": lambda: fields(186),
        "field 74 power cap": lambda: fields(74),
        "fields 251-253 slowdown": lambda: fields(251, 252, 253),
        "fields 269-271 slowdown": lambda: fields(269, 270, 271),
        "fields 74, 269-271": lambda: fields(74, 269, 270, 271),
        "field 82 memory temperature": lambda: fields(82),
        "fields 197, 198 PCIe bytes": lambda: fields(197, 198),
        "fields 138, 139 link 0": lambda: fields((138, 0), (139, 0)),
        "fields 138, 139 all links": lambda: fields((138, _ALL_LINKS), (139, _ALL_LINKS)),
    }
    readings: dict[str, Reading] = {}
    for name, make in wanted.items():
        try:
            readings[name] = make()
        except (AttributeError, nvml.NVMLError) as error:
            print(f"{name}: not with this binding or driver ({error})", flush=True)
    return readings


def _event_wait(nvml: Any, handles: list[Any]) -> Reading:
    events = nvml.nvmlEventSetCreate()
    for handle in handles:
        kinds = nvml.nvmlDeviceGetSupportedEventTypes(handle) & nvml.nvmlEventTypeXidCriticalError
        nvml.nvmlDeviceRegisterEvents(handle, kinds, events)
    return lambda gpu: nvml.nvmlEventSetWait_v2(events, 0)


def source_readings(source: Any) -> dict[str, Reading]:
    """What the sampler itself calls, through the project's own source."""
    return {
        "sampler: read": lambda gpu: source.read(gpu, time.time()),
        "sampler: counters due": lambda gpu: source.read_counters(gpu, time.time()),
        "sampler: all counters": lambda gpu: source.read_counters(gpu, time.time(), True),
        "sampler: power samples": lambda gpu: source.power_samples(gpu),
        "sampler: events": lambda gpu: source.events(),
    }
