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
PCIE_SENT = 197
PCIE_RECEIVED = 198
NVLINK_SENT = 138
NVLINK_RECEIVED = 139
#: as a field's scope, where it would otherwise mean link 0
ALL_LINKS = 0xFFFF_FFFF

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


class ByteCounter:
    """A cumulative count from a driver's 32-bit counter, from 0 at its first reading.

    The counter may have gone round more than once between two readings (at 50 GB/s it does so every
    0.09 s), so the count is a lower bound.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._before: int | None = None

    def count(self, now: int) -> int:
        """The count with the next reading."""
        if self._before is not None:
            increase = now - self._before
            if increase < 0:
                # What had more than 32 bits cannot have gone round: it has begun again.
                increase = increase + 2**32 if self._before < 2**32 else now
            self._bytes += increase
        self._before = now
        return self._bytes

    def interrupt(self) -> None:
        """Count nothing until the next reading but one.

        A counter that a reset of the GPU set back looks like one that went round. But a reset takes
        the GPU away for a time, so that a reading fails.
        """
        self._before = None


def byte_counts_reader(
    nvml: ModuleType, handle: Any, fields: Sequence[Field]
) -> Callable[[], list[FieldValue]]:
    """A call for all the fields, each a ByteCounter."""
    counters = [ByteCounter() for _ in fields]

    def read() -> list[FieldValue]:
        try:
            values = read_fields(nvml, handle, fields)
        except nvml.NVMLError:
            for counter in counters:
                counter.interrupt()
            raise
        counts: list[FieldValue] = []
        for counter, value in zip(counters, values, strict=True):
            if isinstance(value, UnreadableError):
                counter.interrupt()
                counts.append(value)
            else:
                counts.append(counter.count(int(value)))
        return counts

    return read


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
