"""Finds which dies share a package, and which of them reports the package's power."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_lib.telemetry.source import TelemetryError


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
    for first, second in zip(range(count), range(1, count), strict=False):
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
