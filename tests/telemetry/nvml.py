"""A library that plays NVML, and what it is asked to say: see fake_nvml.c."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.telemetry.cells import NODE, read_rows, script_of, wait_for
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import TelemetryEnd, TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.telemetry.devices.nvidia import NvidiaSource

Start = Callable[..., subprocess.Popen[str]]

#: two H200; ids of the slowdown counters as drivers 575 to 580.65 have them, and links' fields at
#: the scope of all links together
H200: Mapping[str, str] = script_of("fake_nvml_h200.txt")

#: GPM's metrics, as the library has them
ACTIVITY = {
    "sm_active_percent": 93.5,
    "sm_occupancy_percent": 30.5,
    "tensor_active_percent": 42.0,
    "dram_active_percent": 30.0,
    "pcie_sent_bytes_per_s": 2.0 * 2**20,
    "pcie_received_bytes_per_s": 4.0 * 2**20,
}


def build(directory: Path, *options: str) -> Path:
    """Compile the library into a directory, which goes to LD_LIBRARY_PATH."""
    source = Path(__file__).with_name("fake_nvml.c")
    output = directory / "libnvidia-ml.so.1"
    options = ("-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *options)
    subprocess.run(["gcc", *options, "-o", str(output), str(source), "-lm"], check=True)
    return output


class Script:
    """What the library says; a change is seen at its next call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def say(self, *events: str, **changes: str | None) -> None:
        """Change keys of H200 ("_" stands for "."), and add events; None takes a key away."""
        keys = dict(H200)
        for name, value in changes.items():
            if value is None:
                del keys[name.replace("_", ".")]
            else:
                keys[name.replace("_", ".")] = value
        lines = [f"{key} {value}\n" for key, value in keys.items()]
        lines += [f"event {event}\n" for event in events]
        new = self.path.with_suffix(".new")
        new.write_text("".join(lines), encoding="utf-8")
        new.replace(self.path)


class Played:
    """NVML in this process: what it says, and the time, which passes only as the test says."""

    def __init__(self, library: Path, script: Script, unix_s: float) -> None:
        self.library = ctypes.CDLL(str(library))
        self._script = script
        self.epoch_s = unix_s
        self.set_time(0.0)

    def say(self, *events: str, **changes: str | None) -> None:
        """As Script.say, in a time that counts from ``epoch_s``."""
        self._script.say(*events, **{"epoch": repr(self.epoch_s), **changes})

    def set_time(self, since_epoch_s: float) -> float:
        """Set the library's and this process's clock; the same as Unix time."""
        self.unix_s = self.epoch_s + since_epoch_s
        self.library.fake_nvml_set_time(ctypes.c_double(self.unix_s))
        return self.unix_s

    @contextlib.contextmanager
    def source(self, *events: str, **changes: str | None) -> Iterator[NvidiaSource]:
        """Say it, and open the source."""
        self.say(*events, **changes)
        source = NvidiaSource()
        try:
            yield source
        finally:
            source.close()


class Node:
    """A node with a sampler, whose NVML says what ``say`` was last given."""

    def __init__(self, directory: Path, library: Path, start: Start) -> None:
        self.paths = RunPaths(directory / "run")
        self._script = Script(directory / "nvml.txt")
        self.say = self._script.say
        self.library = library
        self._start = start

    def start(self, cell: Cell, **environment: str) -> subprocess.Popen[str]:
        return self._start(
            self.paths.directory,
            cell,
            **{
                "FAKE_NVML": str(self._script.path),
                "LD_LIBRARY_PATH": str(self.library.parent),
                **environment,
            },
        )

    def sample(self, cell: Cell, seconds: float = 0.3, **environment: str) -> None:
        process = self.start(cell, **environment)
        wait_for(self.paths.telemetry_ready(NODE), process)
        time.sleep(seconds)
        process.terminate()
        assert process.wait() == 0, process.communicate()[1]

    def refusal(self, cell: Cell, **environment: str) -> str:
        process = self.start(cell, **environment)
        _, message = process.communicate()
        assert process.returncode == 1
        assert "Traceback" not in message
        assert message.count("\n") == 1
        assert self.paths.telemetry_failed(NODE).exists()
        return message

    @property
    def rows(self) -> list[dict[str, str]]:
        return read_rows(self.paths.gpu_samples(NODE))

    @property
    def counters(self) -> list[dict[str, str]]:
        return read_rows(self.paths.gpu_counters(NODE))

    @property
    def started(self) -> TelemetryStart:
        return read_record(self.paths.telemetry_start(NODE), TelemetryStart)

    @property
    def ended(self) -> TelemetryEnd:
        return read_record(self.paths.telemetry_end(NODE), TelemetryEnd)
