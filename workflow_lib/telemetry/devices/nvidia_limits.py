"""Reads, sets and restores power limits and locked clocks of NVIDIA GPUs through NVML."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from workflow_lib.records.nodes import GpuLimits
from workflow_lib.records.training import Training
from workflow_lib.telemetry.devices.nvml import node_gpus, seen_gpus
from workflow_lib.telemetry.source import TelemetryError

#: values of limits that NVML does not tell → why
MISSING = {
    "clock_limit_before_mhz": "NVML does not tell which clocks are locked; to give them back is to "
    "unlock them (nvmlDeviceResetGpuLockedClocks), whatever was locked before"
}


def read_limits(nvml: ModuleType, training: Training, count: int) -> tuple[GpuLimits, ...]:
    """The first ``count`` GPUs that the job sees, with the limits that the cell asks for and those
    in force.

    Changes no limit. Raises TelemetryError if a GPU cannot have its limits, or if the driver does
    not permit this process to change them.
    """
    seen = seen_gpus(node_gpus(nvml), os.environ)
    if len(seen) < count:
        raise TelemetryError(f"the job sees {len(seen)} of the {count} GPUs that are to be limited")

    def of(limits: tuple[int, ...], gpu: int) -> int | None:
        return limits[gpu] if limits else None

    gpus = []
    for gpu, at in enumerate(seen[:count]):
        limits = GpuLimits(
            gpu=gpu,
            name=nvml.nvmlDeviceGetName(at.handle),
            uuid=at.uuid,
            power_limit_asked_w=of(training.power_limits_w, gpu),
            clock_limit_asked_mhz=of(training.clock_limits_mhz, gpu),
            power_limit_before_w=nvml.nvmlDeviceGetPowerManagementLimit(at.handle) / 1e3,
        )
        _check(nvml, at.handle, limits)
        gpus.append(limits)
    return tuple(gpus)


def _check(nvml: ModuleType, handle: Any, gpu: GpuLimits) -> None:
    """Raise TelemetryError if the GPU is divided by MIG, if it does not support the limits, or if
    the driver does not permit changes. To test that, sets the power limit that is already in force.
    """
    try:
        is_divided = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError_NotSupported:
        is_divided = False
    if is_divided:
        raise TelemetryError(
            f"{gpu} is divided by MIG, so its limits are not the job's alone; have MIG turned off, "
            "or leave the limits out of the sweep"
        )
    asked_w, asked_mhz = gpu.power_limit_asked_w, gpu.clock_limit_asked_mhz
    lowest_mw, highest_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    if asked_w is not None and not lowest_mw <= asked_w * 1000 <= highest_mw:
        raise TelemetryError(
            f"{gpu} takes power limits from {lowest_mw / 1e3:g} to {highest_mw / 1e3:g} W, and "
            f"power_limits_w asks for {asked_w} W"
        )
    highest_mhz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    if asked_mhz is not None and asked_mhz > highest_mhz:
        raise TelemetryError(
            f"{gpu} has SM clocks up to {highest_mhz} MHz, and clock_limits_mhz asks for "
            f"{asked_mhz} MHz"
        )
    try:
        nvml.nvmlDeviceSetPowerManagementLimit(handle, round(gpu.power_limit_before_w * 1000))
    except nvml.NVMLError_NoPermission:
        asked = {"W": asked_w, "MHz": asked_mhz}
        limits = " and ".join(f"{limit} {unit}" for unit, limit in asked.items() if limit)
        raise TelemetryError(
            f"{gpu} was to be limited to {limits}, and the driver does not permit that: the "
            "process needs CAP_SYS_ADMIN; an admin can grant it (docs/how-to/set-up-a-cluster.md, "
            "Let jobs set limits), or leave the limits out of the sweep"
        ) from None
    except nvml.NVMLError_NotSupported:
        if asked_w is not None:
            raise


def set_limits(nvml: ModuleType, gpu: GpuLimits) -> GpuLimits:
    """Set the limits of a GPU. Returns its record with the limit that is then enforced.

    Raises TelemetryError if the driver refuses, or sets another limit than it was given.
    """
    handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    asked_w, asked_mhz = gpu.power_limit_asked_w, gpu.clock_limit_asked_mhz
    if asked_w is not None:
        what = f"a power limit of {asked_w} W"
        _set(nvml, gpu, what, nvml.nvmlDeviceSetPowerManagementLimit, handle, asked_w * 1000)
        now_w = nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3
        if now_w != asked_w:
            raise TelemetryError(f"{gpu} was given {what}, and has one of {now_w:g} W")
    if asked_mhz is not None:
        what = f"SM clocks of at most {asked_mhz} MHz"
        _set(nvml, gpu, what, nvml.nvmlDeviceSetGpuLockedClocks, handle, 0, asked_mhz)
    during_w = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
    return dataclasses.replace(gpu, power_limit_during_w=during_w)


def _set(
    nvml: ModuleType, gpu: GpuLimits, what: str, call: Callable[..., None], *arguments: Any
) -> None:
    try:
        call(*arguments)
    except nvml.NVMLError as error:
        raise TelemetryError(f"{gpu} was to have {what}: {error}") from None


def restore_limits(nvml: ModuleType, gpu: GpuLimits) -> tuple[GpuLimits, list[str]]:
    """Restore the former limits of a GPU. Returns its record after that, and the problems."""
    problems: list[str] = []
    asked_w, before_w, after_w = gpu.power_limit_asked_w, gpu.power_limit_before_w, None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        if asked_w is not None:
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(before_w * 1000))
        after_w = nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3
        if asked_w is not None and after_w != before_w:
            problems.append(f"{gpu} was given back {before_w:g} W, and has {after_w:g} W")
    except nvml.NVMLError as error:
        problems.append(f"{gpu} was not given back its power limit of {before_w:g} W: {error}")
    try:
        if gpu.clock_limit_asked_mhz is not None:
            nvml.nvmlDeviceResetGpuLockedClocks(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
    except nvml.NVMLError_NotSupported:
        pass  # then its clocks could not be locked either
    except nvml.NVMLError as error:
        most = gpu.clock_limit_asked_mhz
        problems.append(f"{gpu} may still have its clocks locked to at most {most} MHz: {error}")
    after = dataclasses.replace(gpu, power_limit_after_w=after_w, is_restored=not problems)
    return after, problems


def reachable(nvml: ModuleType, gpus: tuple[GpuLimits, ...]) -> int:
    """How many of the GPUs this process can reach."""
    number = 0
    for gpu in gpus:
        try:
            nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            number += 1
        except nvml.NVMLError_NotFound:
            continue
    return number
