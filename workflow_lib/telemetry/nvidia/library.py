"""Starts NVML."""

from __future__ import annotations

from types import ModuleType

from workflow_lib.telemetry.source import TelemetryError


def started_nvml() -> ModuleType:
    """The binding after nvmlInit. The caller must call nvmlShutdown.

    Raises TelemetryError if there is no binding or no driver.
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
    return nvml
