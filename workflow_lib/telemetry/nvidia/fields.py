"""NVML's field values: what has a number instead of a function of its own.

Numbers are those of ``nvml.h``. A value says its own type, and fails by itself: of several that are
asked for in one call, those that the GPU lacks take nothing from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from workflow_lib.telemetry.source import UnreadableError

MEMORY_TEMPERATURE = 82
POWER_INSTANT = 186
#: nanoseconds at the software power cap
POWER_CAP = 74
NVLINK_SENT = 138
NVLINK_RECEIVED = 139
#: as a field's scope, where it would otherwise mean link 0
_ALL_LINKS = 0xFFFF_FFFF

#: Ids of the cumulative SW thermal, HW thermal and power-brake slowdown, in nanoseconds. NVIDIA has
#: moved them: the bindings of drivers 575 to 580.65 have them at 251–253, where those of 570 and of
#: 580.82 on have power smoothing (an H100 with driver 580.159 answers 269–271 and declines
#: 251–253). The driver counts, not the binding, so both are tried on it.
_EARLY_SLOWDOWN = (251, 252, 253)
_LATE_SLOWDOWN = (269, 270, 271)
_LATE_SINCE_DRIVER = (580, 82)

#: nvmlValueType_t → the member of the union that holds the value
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_UNSIGNED_LONG_LONG = 3

#: a field, or a field and its scope
Field = int | tuple[int, int]
FieldValue = float | int | UnreadableError


def read_fields(nvml: ModuleType, handle: Any, fields: Sequence[Field]) -> list[FieldValue]:
    """One call for all the fields: each one's value at its true width, or what it failed of."""
    values: list[FieldValue] = []
    for field in nvml.nvmlDeviceGetFieldValues(handle, list(fields)):
        if field.nvmlReturn != nvml.NVML_SUCCESS:
            values.append(UnreadableError(str(nvml.NVMLError(field.nvmlReturn))))
            continue
        member = _MEMBERS.get(field.valueType)
        if member is None:
            values.append(UnreadableError(f"unknown NVML value type {field.valueType}"))
        else:
            values.append(getattr(field.value, member))
    return values


def fields_reader(
    nvml: ModuleType,
    handle: Any,
    fields: Sequence[Field],
    unit: Callable[[float | int], float | int] = lambda value: value,
) -> Callable[[], list[FieldValue]]:
    """A call for all the fields, each value put through ``unit``."""

    def read() -> list[FieldValue]:
        return [
            value if isinstance(value, UnreadableError) else unit(value)
            for value in read_fields(nvml, handle, fields)
        ]

    return read


def all_links_reader(
    nvml: ModuleType, handle: Any, fields: Sequence[int]
) -> Callable[[], list[FieldValue]]:
    """A call for counters of NVLink over all links of the GPU, in bytes; NVML counts KiB."""
    scoped = [(field, _ALL_LINKS) for field in fields]
    return fields_reader(nvml, handle, scoped, lambda kib: kib * 1024)


def slowdown_fields(
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
    candidates = [_EARLY_SLOWDOWN, _LATE_SLOWDOWN]
    if (major, minor) >= _LATE_SINCE_DRIVER:
        candidates.reverse()
    return next((fields for fields in candidates if are_counters(fields)), None)
