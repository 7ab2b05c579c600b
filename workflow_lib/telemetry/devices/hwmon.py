"""Sensors of the node under ``/sys/class/hwmon``, which every user may read.

CPU temperatures are read quickly. Sensors that the board's firmware reads (ACPI's power meter,
fans, the inlet) may take tens of milliseconds, so they belong into a thread.
"""

from __future__ import annotations

import re
from pathlib import Path

from workflow_lib.telemetry.devices.kernel import KernelFile, Sensor
from workflow_lib.telemetry.source import UnreadableError

#: driver of a CPU → labels of the sensors of a whole package; coretemp also has cores, k10temp dies
_CPU_SENSORS = {
    "coretemp": re.compile(r"Package id \d+"),
    "k10temp": re.compile(r"Tctl"),
    "zenpower": re.compile(r"Tctl|Tdie"),
}
#: old versions of k10temp have one sensor without a label, which is Tctl
_UNNAMED_CPU_SENSOR = {"k10temp": "temp1_input"}
#: labels that boards give to the sensor of the incoming air
INLET = re.compile(r"inlet|ambient", re.IGNORECASE)


class CpuTemperature(Sensor):
    """The temperature of the hottest CPU package."""

    def __init__(self, root: Path) -> None:
        """Raises UnreadableError if there is no sensor of a CPU."""
        paths = [
            path
            for device, name in _devices(root)
            if name in _CPU_SENSORS
            for path in _inputs(device, "temp")
            if _CPU_SENSORS[name].fullmatch(_label(path))
            or (not _label(path) and path.name == _UNNAMED_CPU_SENSOR.get(name))
        ]
        try:
            self.files = [KernelFile(path) for path in paths]
        except OSError as error:
            raise UnreadableError(str(error)) from None
        if not self.files:
            raise UnreadableError(
                f"no CPU sensor ({', '.join(_CPU_SENSORS)}) under /sys/class/hwmon"
            )

    def read(self) -> float:
        """The temperature, in °C. Raises OSError, ValueError or UnreadableError if it cannot be
        read.
        """
        hottest = max(sensor.number() for sensor in self.files) / 1e3
        if not 0 < hottest <= 150:
            raise UnreadableError(f"the sensor says {hottest} °C")
        return hottest


class BoardSensors:
    """Node power, inlet temperature and speed of the fastest fan, as far as hwmon has them."""

    def __init__(self, root: Path) -> None:
        """Find the sensors. ``missing`` says for each column that has none: column → reason."""
        self.missing: dict[str, str] = {}
        devices = _devices(root)
        meters = [device for device, name in devices if name == "power_meter"]
        self._files: dict[str, list[KernelFile]] = {}
        for column, paths, what in (
            (
                "node_power_w",
                [path for device in meters for path in _power_inputs(device)[:1]],
                "no ACPI power meter",
            ),
            (
                "inlet_temperature_c",
                [p for device, _ in devices for p in _inputs(device, "temp") if _is_inlet(p)],
                "no sensor labelled inlet or ambient",
            ),
            (
                "fan_speed_rpm",
                [path for device, _ in devices for path in _inputs(device, "fan")],
                "no fan",
            ),
        ):
            try:
                self._files[column] = [KernelFile(path) for path in paths]
            except OSError as error:
                self.missing[column] = str(error)
            else:
                if not paths:
                    self.missing[column] = f"{what} under /sys/class/hwmon"
        if len(meters) > 1:
            self.missing["node_power_w"] = (
                f"{len(meters)} ACPI power meters under /sys/class/hwmon, and nothing says which "
                "is the whole node's"
            )

    @property
    def columns(self) -> list[str]:
        """The columns that ``read`` returns."""
        return [column for column in self._files if column not in self.missing]

    def read(self) -> dict[str, float | UnreadableError]:
        """Column → value, or the error in its place."""
        values: dict[str, float | UnreadableError] = {}
        for column in self.columns:
            try:
                # Of several inlet sensors the coolest is nearest to the incoming air.
                numbers = [file.number() for file in self._files[column]]
            except (OSError, ValueError) as error:
                values[column] = UnreadableError(str(error))
                continue
            if column == "node_power_w":
                value = numbers[0] / 1e6
            elif column == "inlet_temperature_c":
                value = min(numbers) / 1e3
            else:
                value = float(max(numbers))
            values[column] = value if value > 0 else UnreadableError(f"the sensor says {value}")
        return values

    def close(self) -> None:
        """Close the sensors."""
        for files in self._files.values():
            for file in files:
                file.close()


def _devices(root: Path) -> list[tuple[Path, str]]:
    """Every device's directory and its driver's name. Some drivers, such as ACPI's, have their
    files in the subdirectory ``device``.
    """
    devices: list[tuple[Path, str]] = []
    for device in sorted(root.glob("sys/class/hwmon/hwmon*")):
        for where in (device, device / "device"):
            if (where / "name").is_file():
                name = (where / "name").read_text(encoding="ascii", errors="replace").strip()
                devices.append((where, name))
                break
    return devices


def _inputs(device: Path, kind: str) -> list[Path]:
    return sorted(device.glob(f"{kind}[0-9]*_input"))


def _power_inputs(device: Path) -> list[Path]:
    paths = (device / "power1_average", device / "power1_input")
    return [path for path in paths if path.exists()]


def _is_inlet(path: Path) -> bool:
    return INLET.search(_label(path)) is not None


def _label(path: Path) -> str:
    label = path.with_name(path.name.replace("_input", "_label"))
    try:
        return label.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
