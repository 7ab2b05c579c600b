"""Sensors of the node through its board controller, if ``ipmitool`` can read it without root.

A call takes tenths of a second to several seconds, so it is made in a thread, never in the
sampler's loop.
Redfish is not used, because it needs the board controller's address and a password.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Union

from workflow_lib.telemetry.devices.hwmon import INLET
from workflow_lib.telemetry.source import UnreadableError

_DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
_TIMEOUT_S = 20.0
_WATTS = re.compile(r"Instantaneous power reading:\s*(\d+)\s*Watts")
#: "Inlet Temp | 05h | ok | 7.1 | 24 degrees C"
_CELSIUS = re.compile(r"([\d.]+) degrees C")
_RPM = re.compile(r"([\d.]+) RPM")


class Ipmi:
    """Node power, inlet temperature and speed of the fastest fan, from ``ipmitool``."""

    def __init__(self, root: Path, columns: Sequence[str]) -> None:
        """``columns`` are those to read. Raises UnreadableError if none can be read."""
        tool = shutil.which("ipmitool")
        devices = [root / device for device in _DEVICES if (root / device).exists()]
        problem = ""
        if not devices:
            problem = "no /dev/ipmi0"
        elif tool is None:
            problem = "ipmitool is not installed"
        elif not os.access(devices[0], os.R_OK | os.W_OK):
            problem = f"{devices[0]} is for root alone"
        if tool is None or problem:
            raise UnreadableError(f"{problem}; Redfish needs a password, so it is not asked")
        self._tool = tool
        self._columns = columns
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def read(self) -> dict[str, float | UnreadableError]:
        """Column → value, or the error in its place. Takes seconds."""
        questions: dict[str, Callable[[], float]] = {
            "node_power_w": self._power_w,
            "inlet_temperature_c": self._inlet_c,
            "fan_speed_rpm": self._fan_rpm,
        }
        values: dict[str, float | UnreadableError] = {}
        for column in self._columns:
            try:
                values[column] = questions[column]()
            except UnreadableError as error:
                values[column] = error
        return values

    def close(self) -> None:
        """End a call that is under way, and begin no more calls."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def _power_w(self) -> float:
        match = _WATTS.search(self._ask("dcmi", "power", "reading"))
        if match is None or match[1] == "0":
            raise UnreadableError("ipmitool dcmi power reading tells no power")
        return float(match[1])

    def _inlet_c(self) -> float:
        lines = self._ask("sdr", "type", "temperature").splitlines()
        inlets = [line for line in lines if INLET.search(line.partition("|")[0])]
        numbers = [float(match[1]) for line in inlets if (match := _CELSIUS.search(line))]
        if not numbers:
            raise UnreadableError("ipmitool sdr type temperature has no inlet or ambient sensor")
        return min(numbers)

    def _fan_rpm(self) -> float:
        numbers = [float(match[1]) for match in _RPM.finditer(self._ask("sdr", "type", "fan"))]
        if not numbers:
            raise UnreadableError("ipmitool sdr type fan tells no speed")
        return max(numbers)

    def _ask(self, *words: str) -> str:
        called = f"ipmitool {' '.join(words)}"
        if self._closed:
            raise UnreadableError(f"{called} was not begun: the sampler ends")
        try:
            self._process = subprocess.Popen(
                [self._tool, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            raise UnreadableError(f"{called}: {error.strerror}") from None
        with self._process as process:
            try:
                output, errors = process.communicate(timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise UnreadableError(f"{called} did not end within {_TIMEOUT_S:g} s") from None
        self._process = None
        if process.returncode != 0:
            message = " ".join(errors.split()) or "no message"
            raise UnreadableError(f"{called} ended with {process.returncode}: {message}")
        return output


Reading = Mapping[str, Union[float, UnreadableError]]


class Background:
    """Calls ``read`` in a thread of its own, at most once in ``period_s``.

    A call begins only when ``latest`` asks for it, so the thread rests while the sampler pauses.
    """

    def __init__(self, read: Callable[[], Reading], period_s: float) -> None:
        self._read = read
        self._period_s = period_s
        self._due_s = float("-inf")
        self._done: queue.SimpleQueue[Reading] = queue.SimpleQueue()
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._waiting = False
        # A daemon, so that a call that hangs does not keep the sampler from ending.
        self._thread = threading.Thread(target=self._work, name="slow readings", daemon=True)
        self._thread.start()

    def latest(self, now_s: float) -> Reading:
        """The reading that ended since the last call; empty if none did. Each is returned once.

        Begins the next call if it is due. ``now_s`` is the time of a monotonic clock.
        """
        try:
            values: Reading = self._done.get_nowait()
            self._waiting = False
        except queue.Empty:
            values = {}
        if now_s >= self._due_s and not self._waiting:
            self._due_s = now_s + self._period_s
            self._waiting = True
            self._wanted.put(True)
        return values

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread after the call that is under way. Wait for that at most ``timeout_s``."""
        self._wanted.put(False)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while self._wanted.get():
            self._done.put(self._read())
