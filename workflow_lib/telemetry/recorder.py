"""Writes a node's readings into the files of its run.

What is read at which time::

    tick     0         1         2         3    …    every GPU's row of fast readings
    GPU      0 1 2 3   0 1 2 3   0 1 2 3   0 1 2 3   each with the wall clock of its own reading
    GPU      0               1         2         3   each GPU once a second, which is a round:
                                                     counters that are due, and in every other
                                                     round the driver's own samples of power
    second   host, events; all rows go to the thread that writes
    2 s      each GPU's energy counter at one of its changes, between ticks (energy_changes)
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from workflow_lib import records
from workflow_lib.telemetry.energy_changes import EnergyChanges
from workflow_lib.telemetry.files import SampleFile
from workflow_lib.telemetry.node.host import Host
from workflow_lib.telemetry.source import Source, Value
from workflow_lib.telemetry.writing import Writing

#: with a longer time between two of the driver's power samples, some were lost: they are 20 ms
#: apart on H200
_LOST_US = 250_000


class Recorder:
    """Reads a source and a host, and writes their readings.

    There is no file for readings that the source lacks. Its ``missing`` has the reason.
    """

    def __init__(
        self,
        paths: records.RunPaths,
        node: str,
        source: Source,
        host: Host,
        rates_alternate: bool,
    ) -> None:
        """Create the files. Raises TelemetryError if one of them exists."""
        self._source = source
        self._host = host
        self._gpus = range(len(source.gpus))
        #: for each GPU, after how many rounds the driver's power samples are collected. A call
        #: costs the same for one sample as for all that the driver keeps (2.4 s of them on H200)
        self._power_rounds = [2] * len(source.gpus)
        #: for each GPU, the driver's time of the last sample; 0 before the first
        self._power_until_us = [0] * len(source.gpus)
        self._energy = EnergyChanges(source)
        self.restart_rounds(time.monotonic())
        self._files: list[SampleFile] = []
        with ExitStack() as opened:
            create = functools.partial(self._create, opened)
            self._samples = create(paths.gpu_samples(node), records.GPU_SAMPLES)
            self._counters = create(paths.gpu_counters(node), records.GPU_COUNTERS)
            self._host_samples = create(paths.host_samples(node), records.HOST_SAMPLES)
            self._power = self._events = self._blocks = None
            if "power_mw" not in source.missing:
                self._power = create(paths.power_samples(node), records.POWER_SAMPLES)
            if "event" not in source.missing:
                self._events = create(paths.gpu_events(node), records.GPU_EVENTS)
            if rates_alternate:
                self._blocks = create(paths.sampler_blocks(node), records.SAMPLER_BLOCKS)
            self._writing = Writing(self._samples, paths.telemetry_stop)
            opened.callback(self._writing.end)
            self._opened = opened.pop_all()

    def restart_rounds(self, now_s: float) -> None:
        """Begin a round of the GPUs, so that after a pause they are again spread over a second."""
        self._rounds_from_s = now_s
        self._counter_reads = 0
        self._energy.restart(now_s)

    def tick(self, now_s: float, lateness_s: float) -> None:
        """Read every GPU, and the counters of the GPUs that are due.

        ``now_s`` is on the monotonic clock; ``lateness_s`` is how late the tick began.
        """
        self._read_gpus(lateness_s)
        due = int((now_s - self._rounds_from_s) * len(self._gpus))
        # After a late tick, no GPU's counters are read more than once.
        for number in range(max(self._counter_reads, due + 1 - len(self._gpus)), due + 1):
            gpu = number % len(self._gpus)
            self._read_counters(gpu, everything=False)
            if number // len(self._gpus) % self._power_rounds[gpu] == 0:
                self._collect_power(gpu)
        self._counter_reads = due + 1

    @property
    def energy_due_s(self) -> float:
        """When an energy counter is to be read next, on the monotonic clock."""
        return self._energy.next_s

    def energy(self, now_s: float) -> None:
        """Read the energy counter that is due, by one call of milliseconds."""
        if row := self._energy.call(now_s):
            self._counters.add(row)

    def second(self) -> None:
        """Read the host and the events, and hand all rows over to be written.

        Raises TelemetryError if earlier rows could not be written, or the files are gone.
        """
        self._read_host_and_events()
        self._writing.hand_over(self._files)

    def everything(self) -> None:
        """Read everything, due or not, for a run's first and last rows. Wait for the writing."""
        self._read_gpus(None)
        for gpu in self._gpus:
            self._read_counters(gpu, everything=True)
            self._collect_power(gpu)
        self.second()
        self._writing.wait()

    def block(self, row: Mapping[str, Value]) -> None:
        """Write the row of a block that has ended; ``row`` has the columns of SAMPLER_BLOCKS."""
        if self._blocks is not None:
            self._blocks.add(row)
            self.rest()

    def rest(self) -> None:
        """Read nothing, but hand waiting rows over and check for the request to stop."""
        self._writing.hand_over(self._files)

    @property
    def asked_to_stop(self) -> bool:
        """Whether the sampler was asked to stop."""
        return self._writing.asked_to_stop

    def close(self) -> None:
        """Write the waiting rows and close all files, even if one of them cannot be written."""
        self._opened.close()

    def _create(
        self, opened: ExitStack, path: Path, columns: Sequence[records.Column]
    ) -> SampleFile:
        file = SampleFile(path, columns)
        opened.callback(file.close)
        self._files.append(file)
        return file

    def _read_gpus(self, lateness_s: float | None) -> None:
        if lateness_s is not None:
            lateness_s = round(lateness_s, 6)
        for gpu in self._gpus:
            started_s = time.perf_counter()
            unix_time_s = time.time()
            values = self._source.read(gpu, unix_time_s)
            self._samples.add(
                {
                    **values,
                    "unix_time_s": unix_time_s,
                    "gpu": gpu,
                    "lateness_s": lateness_s,
                    "read_cost_s": round(time.perf_counter() - started_s, 7),
                }
            )

    def _read_counters(self, gpu: int, everything: bool) -> None:
        started_s = time.perf_counter()
        unix_time_s = time.time()
        values = self._source.read_counters(gpu, unix_time_s, everything)
        if values:
            self._counters.add(
                {
                    **values,
                    "unix_time_s": unix_time_s,
                    "gpu": gpu,
                    "read_cost_s": round(time.perf_counter() - started_s, 7),
                }
            )

    def _collect_power(self, gpu: int) -> None:
        if self._power is None:
            return
        samples = self._source.power_samples(gpu)
        if not samples:
            return
        latest_us = self._power_until_us[gpu]
        if latest_us and samples[0][0] - latest_us > _LOST_US:
            # The driver keeps samples for a shorter time than two rounds: collect in every round.
            self._power_rounds[gpu] = 1
        self._power_until_us[gpu] = samples[-1][0]
        self._power.add_lines(f"{time_us},{gpu},{power_mw}" for time_us, power_mw in samples)

    def _read_host_and_events(self) -> None:
        own_s = {"unix_time_s": time.time(), "sampler_cpu_time_s": time.process_time()}
        self._host_samples.add({**self._host.read(), **own_s})
        if self._events is None:
            return
        for gpu, event, code in self._source.events():
            self._events.add({"unix_time_s": time.time(), "gpu": gpu, "event": event, "code": code})
