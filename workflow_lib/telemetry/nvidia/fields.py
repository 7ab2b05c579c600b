"""NVML's field values: readings that have a field id instead of a function of their own.

Field ids are those of ``nvml.h``. One call reads several fields. Each value has its own type and
its own error, so a field that the GPU lacks does not affect the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from workflow_lib.telemetry.source import UnreadableError

MEMORY_TEMPERATURE = 82
POWER_INSTANT = 186
#: cumulative time at the software power cap, in ns
POWER_CAP = 74
NVLINK_SENT = 138
NVLINK_RECEIVED = 139
#: scope of a field for all links; without a scope it would mean link 0
_ALL_LINKS = 0xFFFF_FFFF

#: Field ids of the cumulative SW thermal, HW thermal and power-brake slowdown, in ns. NVIDIA has
#: moved them. The bindings of drivers 575 to 580.65 have them at 251–253; those of 570 and of
#: 580.82 and later have power smoothing there (an H100 with driver 580.159 answers 269–271 and
#: declines 251–253). The ids depend on the driver, not on the binding, so both are tried.
_EARLY_SLOWDOWN = (251, 252, 253)
_LATE_SLOWDOWN = (269, 270, 271)
_LATE_SINCE_DRIVER = (580, 82)

#: nvmlValueType_t → the member of the union that holds the value
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_UNSIGNED_LONG_LONG = 3

#: a field id, or a field id and its scope
Field = int | tuple[int, int]
FieldValue = float | int | UnreadableError


def read_fields(nvml: ModuleType, handle: Any, fields: Sequence[Field]) -> list[FieldValue]:
    """The values of several fields, read by one call; an error in place of a value that failed."""
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
    """A function that reads the fields by one call, and converts each value with ``unit``."""

    def read() -> list[FieldValue]:
        return [
            value if isinstance(value, UnreadableError) else unit(value)
            for value in read_fields(nvml, handle, fields)
        ]

    return read


def all_links_reader(
    nvml: ModuleType, handle: Any, fields: Sequence[int]
) -> Callable[[], list[FieldValue]]:
    """A function that reads NVLink counters over all links of the GPU, in bytes (NVML's: KiB)."""
    scoped = [(field, _ALL_LINKS) for field in fields]
    return fields_reader(nvml, handle, scoped, lambda kib: kib * 1024)


def slowdown_fields(
    nvml: ModuleType, handles: Sequence[Any], driver: str
) -> tuple[int, int, int] | None:
    """The field ids of this driver's slowdown counters; None if it has none.

    A counter is a readable 64-bit number; the power-smoothing settings, which other drivers have
    under the same ids, are not. If a driver answers to both sets of ids, its version decides.
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
