"""Starts NVML, and finds the GPUs that the job sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from workflow_lib.telemetry.source import LostGpuError, TelemetryError
from workflow_lib.telemetry.visible import visible_gpus

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
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found.append(NodeGpu(index, handle, nvml.nvmlDeviceGetUUID(handle)))
        except nvml.NVMLError as error:
            found.append(NodeGpu(index, error=error))
    return found


def seen_gpus(gpus: list[NodeGpu], environment: Mapping[str, str]) -> list[NodeGpu]:
    """Those GPUs of the node that the job sees, in its order. Raises LostGpuError if NVML does not
    answer for one of them."""
    seen = [gpus[i] for i in visible_gpus([g.uuid for g in gpus], _VARIABLES, environment)]
    for number, gpu in enumerate(seen):
        if gpu.error is not None:
            raise LostGpuError(number, f"GPU {gpu.index} does not answer: {gpu.error}")
    return seen


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
