"""AMD GPUs through AMD SMI (``amdsmi``). NEVER TESTED ON HARDWARE: the tests use the real Python
binding with a library that stands in for ROCm's.

GPUs differ:

* MI250 has two dies ("GPUs") in a package, and one power sensor. One die reports it; the driver
  reports 0 for the other (Linux, aldebaran_ppt.c). Power and energy of that die are left empty, so
  that a sum over GPUs is right.
* MI2xx reports a momentary throttle status, which is sampled at every tick. MI3xx accumulates
  throttle times instead, and bytes over xGMI.

At every tick, one call fetches the GPU's table of metrics. This call is the whole cost of a tick;
other calls of AMD SMI fetch the same table. Counters fetch it once more, every few seconds.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from workflow_lib.telemetry.devices.amd_metrics import GpuMetrics
from workflow_lib.telemetry.polling import Poll, PolledSource
from workflow_lib.telemetry.source import TelemetryError, UnreadableError, visible_gpus

_METRICS_PERIOD_S = 5.0
#: a limit above this is in microwatts, as in AMD SMI since ROCm 6; earlier versions use watts
_LARGEST_LIMIT_W = 10_000
_AT_EVERY_TICK = (
    "temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "utilisation_percent",
    "event_reasons",
)
_METRICS = (
    "edge_temperature_c",
    "memory_temperature_c",
    "gpu_link_received_bytes",
    "gpu_link_sent_bytes",
    "throttle_power_cap_s",
    "throttle_sw_thermal_s",
    "throttle_hw_thermal_s",
)
#: errors of an amdsmi package for another version of ROCm: symbols and keys are missing, and texts
#: and enumerations are read from wrong offsets
_MISMATCH = (ImportError, KeyError, OSError, AttributeError, TypeError, ValueError)


class AmdSource(PolledSource):
    """The AMD GPUs (dies) that the job sees, in the order of ``ROCR_`` and ``HIP_VISIBLE_DEVICES``.

    Dies share packages in the driver's order: with two in a package, 0 and 1, 2 and 3, and so on.
    """

    def __init__(self, gpus_per_package: int) -> None:
        """Raises TelemetryError if AMD SMI does not start, has no GPUs, or reports no power, or if
        packages of ``gpus_per_package`` contradict the driver.
        """
        self._smi = _import_amdsmi()
        smi = self._smi
        try:
            smi.amdsmi_init()
        except smi.AmdSmiException as error:
            raise TelemetryError(
                f"AMD SMI did not start: {_text(error)}; is this a node with AMD GPUs and the "
                "amdgpu driver, and is /dev/kfd visible in the container?"
            ) from None
        try:
            self._open(gpus_per_package)
        except BaseException as error:
            smi.amdsmi_shut_down()
            if isinstance(error, smi.AmdSmiException):
                raise TelemetryError(
                    f"AMD SMI could not describe this node's GPUs: {_text(error)}"
                ) from None
            if isinstance(error, _MISMATCH):
                raise _mismatch(error) from error
            raise

    def power_limits_w(self) -> Sequence[float | None]:
        """The packages' limits, of the dies that report their power."""
        return [
            self._power_limit_w(handle) if entry["reports_power"] else None
            for handle, entry in zip(self._handles, self.gpus)
        ]

    def close(self) -> None:
        """Shut AMD SMI down."""
        self._smi.amdsmi_shut_down()

    def _open(self, gpus_per_package: int) -> None:
        smi = self._smi
        every = list(smi.amdsmi_get_processor_handles())
        metrics = [GpuMetrics(smi, handle) for handle in every]
        for handle, table in zip(every, metrics):
            _check_metrics(smi, handle, table)
        uuids = [str(smi.amdsmi_get_gpu_device_uuid(handle)) for handle in every]
        # HIP takes CUDA's variable where its own is not set.
        second = (
            "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in os.environ else "CUDA_VISIBLE_DEVICES"
        )
        indices = visible_gpus(uuids, ("ROCR_VISIBLE_DEVICES", second), os.environ)
        sensors = power_sensors(
            [_has_power(table) for table in metrics],
            # The functions of a PCI device are its partitions, which all share one package.
            [str(smi.amdsmi_get_gpu_device_bdf(handle)).rpartition(".")[0] for handle in every],
            gpus_per_package,
        )
        for index in indices:
            sensor = sensors[index // gpus_per_package]
            if sensor not in indices:
                raise TelemetryError(
                    f"GPU {index} shares a package with GPU {sensor}, which reports the power of "
                    "both but is not visible to the job; give the job whole packages"
                )
        self._handles = [every[index] for index in indices]
        super().__init__(
            name="amd",
            gpus=[
                self._describe(i, every[i], uuids[i], i // gpus_per_package, i in sensors)
                for i in indices
            ],
            polls=[self._polls_of(every[i], metrics[i], i in sensors) for i in indices],
            failures=(smi.AmdSmiException,),
        )

    def _describe(
        self, index: int, handle: Any, uuid: str, package: int, reports_power: bool
    ) -> dict[str, Any]:
        smi = self._smi
        asic = smi.amdsmi_get_gpu_asic_info(handle)
        return {
            "name": asic["market_name"],
            "uuid": uuid,
            "serial": asic.get("asic_serial"),
            "power_limit_w": self._power_limit_w(handle) if reports_power else None,
            "driver_version": smi.amdsmi_get_gpu_driver_info(handle).get("driver_version"),
            "index": index,
            "package": package,
            "reports_power": reports_power,
            "pci_bus_id": str(smi.amdsmi_get_gpu_device_bdf(handle)),
        }

    def _power_limit_w(self, handle: Any) -> float | None:
        try:
            limit = self._smi.amdsmi_get_power_cap_info(handle)["power_cap"]
        except self._smi.AmdSmiException:
            return None  # the limit only describes the GPU; no reading depends on it
        if not isinstance(limit, int) or limit <= 0:
            return None
        return limit / 1e6 if limit > _LARGEST_LIMIT_W else float(limit)

    def _throttle_temperature_c(self, handle: Any) -> int | UnreadableError:
        """The hotspot temperature at which the firmware throttles: hwmon's "critical" one."""
        smi = self._smi
        try:
            limit = smi.amdsmi_get_temp_metric(
                handle,
                smi.AmdSmiTemperatureType.HOTSPOT,
                smi.AmdSmiTemperatureMetric.CRITICAL,
            )
        except smi.AmdSmiException as error:
            return UnreadableError(f"no temperature of slowdown: {_text(error)}")
        return int(limit) if 0 < limit <= 200 else UnreadableError(f"slowdown at {limit} °C?")

    def _polls_of(self, handle: Any, metrics: GpuMetrics, reports_power: bool) -> list[Poll]:
        smi = self._smi
        limit_c = self._throttle_temperature_c(handle)

        def fast() -> list[float | int | UnreadableError]:
            metrics.fetch()
            return [
                # The firmware throttles on the temperature of the hotspot (junction).
                _try(lambda: metrics.number("temperature_hotspot")),
                _try(lambda: metrics.number("current_gfxclk")),
                _try(lambda: metrics.number("current_uclk")),
                _try(lambda: metrics.number("average_gfx_activity")),
                _try(metrics.event_reasons),
                *([_try(metrics.power_w)] if reports_power else []),
            ]

        def counters() -> list[float | int | UnreadableError]:
            metrics.fetch()
            return [
                _try(lambda: metrics.number("temperature_edge")),
                _try(lambda: metrics.number("temperature_mem")),
                _try(lambda: metrics.link_bytes("xgmi_read_data_acc")),
                _try(lambda: metrics.link_bytes("xgmi_write_data_acc")),
                *metrics.throttled_s(),
                _try(lambda: _below(limit_c, metrics.number("temperature_hotspot"))),
                *([_try(metrics.energy_j)] if reports_power else []),
            ]

        def errors() -> tuple[int, int]:
            counts = smi.amdsmi_get_gpu_total_ecc_count(handle)
            return counts["correctable_count"], counts["uncorrectable_count"]

        power, energy = (("power_w",), ("energy_j",)) if reports_power else ((), ())
        vram = smi.AmdSmiMemoryType.VRAM
        return [
            Poll((*_AT_EVERY_TICK, *power), fast),
            Poll((*_METRICS, "thermal_margin_c", *energy), counters, _METRICS_PERIOD_S),
            Poll(
                ("memory_used_bytes",),
                lambda: (smi.amdsmi_get_gpu_memory_usage(handle, vram),),
                _METRICS_PERIOD_S,
            ),
            # This call reads a file of the driver for each block of the GPU.
            Poll(("ecc_corrected_errors", "ecc_uncorrected_errors"), errors),
        ]


def _import_amdsmi() -> ModuleType:
    printed = io.StringIO()
    try:
        # Without ROCm's libamd_smi.so the package prints why, and then fails with another error.
        with contextlib.redirect_stdout(printed):
            import amdsmi
    except _MISMATCH as error:
        raise _mismatch(error, printed.getvalue()) from None
    return amdsmi  # type: ignore[no-any-return]


def _mismatch(error: BaseException, printed: str = "") -> TelemetryError:
    reason = " ".join(f"{type(error).__name__}: {error} {printed}".split())
    return TelemetryError(
        "AMD telemetry needs the site's amdsmi Python package, of the same version as its ROCm "
        f"({reason}); put ROCm's share/amd_smi on PYTHONPATH and its lib on LD_LIBRARY_PATH"
    )


def _check_metrics(smi: ModuleType, handle: Any, metrics: GpuMetrics) -> None:
    """Raise TelemetryError if binding and library use different layouts of the table."""
    metrics.check_layout()
    try:
        before = metrics.energy_units()
    except UnreadableError:
        return  # the GPU has no energy counter to compare
    counted = smi.amdsmi_get_energy_count(handle)
    # ROCm 6.0 to 6.2 call it "power" (bindings 6.0.2 to 6.2.4), 6.3 and later "energy_accumulator".
    count = int(counted["energy_accumulator" if "energy_accumulator" in counted else "power"])
    metrics.fetch()
    after = metrics.energy_units()
    if before <= after and not before <= count <= after:
        raise TelemetryError(
            f"the Python package amdsmi reads {before} to {after} where ROCm's libamd_smi.so says "
            f"that the energy counter is {count}: they belong to different versions; put the "
            "site's own share/amd_smi first on PYTHONPATH"
        )


def _has_power(metrics: GpuMetrics) -> bool:
    try:
        return metrics.power_w() > 0
    except UnreadableError:
        return False


def _below(limit_c: int | UnreadableError, temperature_c: int) -> int:
    if isinstance(limit_c, UnreadableError):
        raise limit_c
    return limit_c - temperature_c


def _try(read: Callable[[], float | int]) -> float | int | UnreadableError:
    """The value of a column, or the error in its place, so that other columns are still read."""
    try:
        return read()
    except UnreadableError as error:
        return error


def _text(error: Exception) -> str:
    return " ".join(str(error).split())


def power_sensors(
    reports_power: Sequence[bool], devices: Sequence[str], gpus_per_package: int
) -> list[int]:
    """The index of the die that reports power, for every package.

    ``reports_power`` says for each die whether the driver reports power of it (never 0 W, even if
    idle). ``devices`` has each die's PCI device. Consecutive dies form a package.

    Raises TelemetryError if packages of ``gpus_per_package`` contradict the driver: with two
    sensors in a package its energy would be halved, and with none it would be lost.
    """
    count = len(reports_power)
    if count % gpus_per_package:
        raise TelemetryError(
            f"AMD SMI lists {count} GPUs, which are not whole packages of {gpus_per_package}; "
            "give the job whole packages, or correct gpus_per_package in the platform's file"
        )
    for first, second in zip(range(count), range(1, count)):
        together = first // gpus_per_package == second // gpus_per_package
        if devices[first] == devices[second] and not together:
            raise TelemetryError(
                f"GPUs {first} and {second} are partitions of one device ({devices[first]}) and so "
                f"share its power, but gpus_per_package is {gpus_per_package}; set it to the "
                "number of partitions, or run with whole devices (amd-smi's partition SPX)"
            )
    sensors: list[int] = []
    for start in range(0, count, gpus_per_package):
        package = range(start, start + gpus_per_package)
        reporting = [gpu for gpu in package if reports_power[gpu]]
        if len(reporting) > 1:
            raise TelemetryError(
                f"GPUs {' and '.join(map(str, reporting))} each report a power of their own, so "
                f"they are not a package of {gpus_per_package}; correct gpus_per_package in the "
                "platform's file (2 on MI250, 1 on MI300)"
            )
        if not reporting:
            names = ", ".join(map(str, package))
            raise TelemetryError(
                f"GPU {names} reports no power, and a run cannot be measured without it; is "
                f"gpus_per_package, {gpus_per_package}, right (2 on MI250, 1 on MI300)?"
            )
        sensors.append(reporting[0])
    return sensors
