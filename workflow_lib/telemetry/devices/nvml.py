"""NVML: how it is started, the GPUs that the job sees, and its field values.

Field values are readings that have a field id (``nvml.h``) instead of a function of their own. One
call reads several fields. Each value has its own type and its own error, so a field that the GPU
lacks does not affect the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Union

from workflow_lib.records.nodes import LinkReading
from workflow_lib.telemetry.source import (
    LostGpuError,
    TelemetryError,
    UnreadableError,
    visible_gpus,
)

_VARIABLES = ("CUDA_VISIBLE_DEVICES",)


@dataclass(frozen=True)
class NodeGpu:
    """A GPU of the node, whether or not the job sees it."""

    #: NVML's number of it
    index: int
    handle: Any = None
    uuid: str = ""
    #: NVML's error where it does not answer for the GPU
    error: Exception | None = None


def node_gpus(nvml: ModuleType) -> list[NodeGpu]:
    """All GPUs of the node, in NVML's order."""
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(NodeGpu(index, handle, nvml.nvmlDeviceGetUUID(handle)))
        except nvml.NVMLError as error:
            gpus.append(NodeGpu(index, error=error))
    return gpus


def seen_gpus(gpus: list[NodeGpu], environment: Mapping[str, str]) -> list[NodeGpu]:
    """Those GPUs of the node that the job sees, in its order. Raises LostGpuError if NVML does not
    answer for one of them."""
    seen = [gpus[i] for i in visible_gpus([g.uuid for g in gpus], _VARIABLES, environment)]
    for number, gpu in enumerate(seen):
        if gpu.error is not None:
            raise LostGpuError(number, f"GPU {gpu.index} does not answer: {gpu.error}")
    return seen


def slurm_gpus(numbers: str, order: str | None) -> list[str]:
    """The UUIDs of a node's GPUs that Slurm gives by number, as in ``SLURM_JOB_GPUS``.

    Slurm counts them as ``gres.conf`` lists them: by device files, or with ``AutoDetect`` along the
    PCI bus, as NVML does (``common_gres_set_env`` in its source). Where the two differ ``order``
    says which of them it is, "files" or "bus". Raises TelemetryError.
    """
    nvml = started_nvml()
    try:
        by_bus = seen_gpus(node_gpus(nvml), {})
        minors = [nvml.nvmlDeviceGetMinorNumber(gpu.handle) for gpu in by_bus]
    except nvml.NVMLError as error:
        raise TelemetryError(f"NVML does not tell the GPUs' device files: {error}") from None
    finally:
        nvml.nvmlShutdown()
    by_files = [gpu for _, gpu in sorted(zip(minors, by_bus), key=lambda pair: pair[0])]
    if order is None and by_files != by_bus:
        raise TelemetryError(
            f"this node's device files are in another order than its PCI bus ({minors}), so GPU "
            f"{numbers} is not known; say which one gres.conf has: --order bus if it has "
            "AutoDetect=nvml, else --order files"
        )
    gpus = by_files if order == "files" else by_bus
    if not all(n.isdecimal() and int(n) < len(gpus) for n in numbers.split(",")):
        raise TelemetryError(f"Slurm names GPU {numbers}, but NVML shows {len(gpus)}")
    return [gpus[int(number)].uuid for number in numbers.split(",")]


def started_nvml() -> ModuleType:
    """The binding after nvmlInit. The caller must call nvmlShutdown.

    Raises TelemetryError if there is no binding or no driver, or if the binding is too old.
    """
    try:
        import pynvml
    except ImportError as error:
        raise TelemetryError(
            f"NVIDIA telemetry needs the Python package nvidia-ml-py: {error}; install it in "
            "the environment that the telemetry step uses"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise TelemetryError(
            f"NVML did not start: {error}; is this a node with NVIDIA GPUs and a driver, and "
            "are they visible in the container?"
        ) from None
    nvml: ModuleType = pynvml
    if isinstance(nvml.nvmlSystemGetDriverVersion(), bytes):
        nvml.nvmlShutdown()
        raise TelemetryError(
            f"{nvml.__file__} is a binding of NVML from before 2022, which returns bytes; install "
            "nvidia-ml-py 12 or newer in the environment that the telemetry step uses"
        )
    return nvml


MEMORY_TEMPERATURE = 82
POWER_INSTANT = 186
#: average power (field 185) of the memory (scope 2, NVML_POWER_SCOPE_MEMORY), in mW
MEMORY_POWER = (185, 2)
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
Field = Union[int, tuple[int, int]]
FieldValue = Union[float, int, UnreadableError]


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


#: one reading; raises UnreadableError
ReadLinks = Callable[[], LinkReading]


def open_links(uuid: str | None) -> ReadLinks:
    """A function that reads the counters of an NVIDIA GPU over all of its links, in about 2 ms.

    NVML stays open until the process ends. Raises UnreadableError with the reason if there is no
    GPU with that UUID, no binding, no driver, or no link.
    """
    if uuid is None:
        raise UnreadableError("the rank has no NVIDIA GPU, whose links alone are counted by steps")
    try:
        import pynvml
    except ImportError as error:
        raise UnreadableError(
            f"counting bytes over links needs the Python package nvidia-ml-py: {error}"
        ) from None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        raise UnreadableError(f"NVML does not open {uuid}: {error}") from None
    counters = all_links_reader(pynvml, handle, (NVLINK_SENT, NVLINK_RECEIVED))

    def read() -> LinkReading:
        try:
            values = counters()
        except pynvml.NVMLError as error:
            raise UnreadableError(f"the link counters were not read: {error}") from None
        whole: list[int] = []
        for value in values:
            if isinstance(value, UnreadableError):
                raise UnreadableError(f"the link counters were not read: {value}")
            whole.append(int(value))
        return LinkReading(time.time(), *whole)

    read()  # so that a missing counter is reported now, and not during training
    return read
