"""NVIDIA GPUs through NVML (``pynvml``).

The cost of each call was measured on H200. Cheap readings are made at every tick, others on periods
of their own (``readings``). No call blocks: PCIe throughput (21 ms a direction) and the process
list are not read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from workflow_lib import gpu_models
from workflow_lib.telemetry.devices.nvidia_collected import DriverEvents, PowerSamples
from workflow_lib.telemetry.devices.nvidia_readings import counter_polls, tick_polls
from workflow_lib.telemetry.devices.nvml import node_gpus, seen_gpus, slowdown_fields, started_nvml
from workflow_lib.telemetry.polling import PolledSource, common_reason
from workflow_lib.telemetry.source import TelemetryError, UnreadableError


class NvidiaSource(PolledSource):
    """The NVIDIA GPUs that the job sees, in the order of ``CUDA_VISIBLE_DEVICES``."""

    def __init__(self) -> None:
        """Raises TelemetryError if there is no binding, no driver or no power reading, or if a GPU
        is divided by MIG.
        """
        self._nvml: ModuleType = started_nvml()
        try:
            self._open()
        except self._nvml.NVMLError as error:
            self._nvml.nvmlShutdown()
            raise TelemetryError(f"NVML could not list this node's GPUs: {error}") from None
        except TelemetryError:
            self._nvml.nvmlShutdown()
            raise

    def power_samples(self, gpu: int) -> Sequence[tuple[int, int]]:
        """The driver's samples since the last call; see Source."""
        try:
            samples = self._power_samples.read(gpu)
        except (self._nvml.NVMLError, UnreadableError) as error:
            self._on_failure(gpu, error)
            self.errors[f"power_mw: {error}"] += 1
            return []
        most_mw = 1000 * gpu_models.most_power_w(self.gpus[gpu])
        possible = [sample for sample in samples if 0 < sample[1] <= most_mw]
        if len(possible) < len(samples):
            self.errors["power_mw: the driver returned what no GPU draws"] += len(samples) - len(
                possible
            )
        return possible

    def events(self) -> Sequence[tuple[int, str, int | None]]:
        """The events that the driver reported, and the GPUs that it lost; see Source."""
        events = list(self._losses)
        self._losses.clear()
        try:
            events += self._driver_events.read()
        except self._nvml.NVMLError as error:
            self.errors[f"event: {error}"] += 1
        return events

    def power_limits_w(self) -> Sequence[float | None]:
        """The enforced limits: the lowest of those that users, the board and thermals set."""
        return [self._power_limit_w(handle) for handle in self._handles]

    def _power_limit_w(self, handle: Any) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3)
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        """Shut NVML down."""
        self._driver_events.close()
        self._nvml.nvmlShutdown()

    def _open(self) -> None:
        nvml = self._nvml
        every = node_gpus(nvml)
        seen = seen_gpus(every, os.environ)
        driver = nvml.nvmlSystemGetDriverVersion()
        self._handles = handles = [gpu.handle for gpu in seen]
        self._lost: set[int] = set()
        self._losses: list[tuple[int, str, int | None]] = []
        self._power_samples = PowerSamples(nvml, handles)
        self._driver_events = DriverEvents(nvml, handles)
        slowdown = slowdown_fields(nvml, handles, driver)
        super().__init__(
            name="nvidia",
            gpus=[
                self._describe(gpu, at.index, at.handle, at.uuid, driver)
                for gpu, at in enumerate(seen)
            ],
            polls=[
                [*tick_polls(nvml, handle), *counter_polls(nvml, handle, slowdown, driver)]
                for handle in handles
            ],
            failures=(nvml.NVMLError,),
        )
        self.others = [
            self._other(gpu.index, gpu.handle, gpu.uuid)
            for gpu in every
            if gpu not in seen and gpu.error is None
        ]
        for column, lacking in (
            ("power_mw", self._power_samples.lacking),
            ("event", self._driver_events.lacking),
        ):
            reason = common_reason(lacking)
            if reason is None:
                continue
            if None in lacking:
                self.errors[f"{column}: {reason}"] += 1  # others have it, so it is not missing
            else:
                self.missing[column] = reason

    def _other(self, index: int, handle: Any, uuid: str) -> dict[str, Any]:
        """The entry for a GPU that the job does not have. An unknown value is None."""
        nvml = self._nvml
        try:
            power_w = float(nvml.nvmlDeviceGetPowerUsage(handle) / 1e3)
        except nvml.NVMLError:
            power_w = None
        return {
            "index": index,
            "name": nvml.nvmlDeviceGetName(handle),
            "uuid": uuid,
            "power_limit_w": self._power_limit_w(handle),
            "power_w": power_w,
        }

    def _describe(
        self, gpu: int, index: int, handle: Any, uuid: str, driver: str
    ) -> dict[str, Any]:
        """The constant properties of a GPU. A value that the driver does not tell is None.

        The PCIe generation and width are those of the link now, which may be below its highest.
        """
        nvml = self._nvml

        def query(function: str, *arguments: Any) -> Any:
            if not hasattr(nvml, function):
                return None  # the binding is older than the call
            try:
                return getattr(nvml, function)(handle, *arguments)
            except nvml.NVMLError:
                return None

        def current(function: str) -> bool | None:
            modes = query(function)  # now, and after the next reset
            return None if modes is None else bool(modes[0])

        def watts(milliwatts: int | None) -> float | None:
            return None if milliwatts is None else milliwatts / 1e3

        name = nvml.nvmlDeviceGetName(handle)
        mig_enabled = current("nvmlDeviceGetMigMode")
        if mig_enabled:
            raise TelemetryError(
                f"GPU {gpu} ({name}, {uuid}) is divided by MIG, so its power is not the job's "
                "alone; run on GPUs without MIG, or have it turned off"
            )
        limits = query("nvmlDeviceGetPowerManagementLimitConstraints")  # lowest, highest
        address = query("nvmlDeviceGetPciInfo")
        persistence = query("nvmlDeviceGetPersistenceMode")
        return {
            "name": name,
            "uuid": uuid,
            "serial": query("nvmlDeviceGetSerial"),
            "power_limit_w": self._power_limit_w(handle),
            "driver_version": driver,
            "index": index,
            "package": index,
            "reports_power": True,
            "power_limit_default_w": watts(query("nvmlDeviceGetPowerManagementDefaultLimit")),
            "power_limit_max_w": None if limits is None else watts(limits[1]),
            "sm_clock_max_mhz": query("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_max_mhz": query("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_slowdown_c": query(
                "nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            "temperature_shutdown_c": query(
                "nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
            ),
            "ecc_enabled": current("nvmlDeviceGetEccMode"),
            "mig_enabled": mig_enabled,
            "persistence_mode": None if persistence is None else bool(persistence),
            "pcie_generation": query("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": query("nvmlDeviceGetCurrPcieLinkWidth"),
            "vbios_version": query("nvmlDeviceGetVbiosVersion"),
            "pci_bus_id": None if address is None else address.busId,
        }

    def _on_failure(self, gpu: int, error: Exception) -> None:
        """Note that a GPU has fallen off the bus, which becomes an event once."""
        if isinstance(error, self._nvml.NVMLError_GpuIsLost) and gpu not in self._lost:
            self._lost.add(gpu)
            self._losses.append((gpu, "lost", None))
