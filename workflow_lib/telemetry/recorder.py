"""Writes a node's readings into the files of its run.

What is read at which time::

    tick     0         1         2         3    …    every GPU's row of fast readings
    GPU      0 1 2 3   0 1 2 3   0 1 2 3   0 1 2 3   each with the wall clock of its own reading
    GPU      0               1         2         3   each GPU once a second, which is a round:
                                                     counters that are due, and in every other
                                                     round the driver's own samples of power
    second   host, events; all rows go to the thread that writes
    2 s      each GPU's energy counter at one of its changes, between ticks (EnergyChanges)

NVIDIA's driver renews its counter about every 0.1 s, so a value read at any other moment is of an
unknown age. In every round, each GPU's counter is read again and again until it changes::

    driver    ─────────┬─────────────────────┬──────      a new value about every 0.1 s
    calls        |  |     one row                         a call every 10 ms
               old  old   new: renewed between the beginning of the last call that still gave the
                          old value, and the end of this one (energy_age_s)

A call takes milliseconds, so the sampler makes it between two ticks. Rounds of several GPUs are
spread over time, and no two GPUs are read at once.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from workflow_lib.records.columns import Column
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
    SAMPLER_BLOCKS,
)
from workflow_lib.telemetry.devices.host import Host
from workflow_lib.telemetry.files import SampleFile, Writing
from workflow_lib.telemetry.source import READINGS, Source, Value

#: Each GPU's counter is read at one change in the period of its column, or once in as many seconds
#: as there are GPUs: a search costs 15 to 35 ms of calls, so one a second is 2 to 4 % of a core.
_SEARCH_EVERY_S = 1.0
#: from the beginning of one call to that of the next
_EVERY_S = 0.01
#: a counter that does not change within this time is written as it is
_GIVE_UP_S = 0.3


class EnergyChanges:
    """When to read the counters of a source next, and the readings at their changes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._gpus = tuple(source.energy_in_steps)
        self._spacing_s = max(
            READINGS["energy_j"].period_s / max(len(self._gpus), 1), _SEARCH_EVERY_S
        )
        #: of the present search: when its first call began, and the last one that gave the value
        #: before; that value (None before the first call); and the time that all calls took
        self._since_s = self._before_s = self._cost_s = 0.0
        self._before_j: float | None = None
        self.restart(math.inf)

    def restart(self, now_s: float) -> None:
        """Begin a round now (monotonic clock), so that GPUs are again spread over it."""
        self._from_s = now_s
        self._searches = 0
        self._end_search()

    @property
    def next_s(self) -> float:
        """When the next call is due, on the monotonic clock; infinity if none ever is."""
        return self._next_s

    def call(self, now_s: float) -> dict[str, Value] | None:
        """Make the call that is due. Returns columns of GPU_COUNTERS at a change, else None."""
        gpu = self._gpus[self._searches % len(self._gpus)]
        began_s, before_s, before_j = now_s, self._before_s, self._before_j
        energy_j = self._source.read_energy(gpu)
        ended_s, unix_time_s = time.monotonic(), time.time()
        self._cost_s += ended_s - began_s
        if energy_j is None:
            self._next_search()
            return None
        if before_j is None:
            self._since_s = began_s
        is_old = before_j is None or energy_j == before_j
        if is_old and began_s - self._since_s < _GIVE_UP_S:
            self._before_s, self._before_j = began_s, energy_j
            self._next_s = began_s + _EVERY_S
            return None
        age_s = None if energy_j == before_j else round(ended_s - before_s, 6)
        row = {
            "unix_time_s": unix_time_s,
            "gpu": gpu,
            "energy_j": energy_j,
            "energy_age_s": age_s,
            "read_cost_s": round(self._cost_s, 7),
        }
        self._next_search(ended_s)
        return row

    def _next_search(self, now_s: float = -math.inf) -> None:
        """Wait for the turn of the next GPU. Turns that are over are left out."""
        spacing_s = self._spacing_s
        turns = (now_s - self._from_s) // spacing_s if now_s > self._from_s else 0
        self._searches = max(self._searches + 1, int(turns))
        self._end_search()

    def _end_search(self) -> None:
        self._before_j, self._cost_s = None, 0.0
        self._next_s = self._from_s + self._searches * self._spacing_s if self._gpus else math.inf


#: with a longer time between two of the driver's power samples, some were lost: they are 20 ms
#: apart on H200
_LOST_US = 250_000


class Recorder:
    """Reads a source and a host, and writes their readings.

    There is no file for readings that the source lacks. Its ``missing`` has the reason.
    """

    def __init__(
        self,
        paths: RunPaths,
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
            self._samples = create(paths.gpu_samples(node), GPU_SAMPLES)
            self._counters = create(paths.gpu_counters(node), GPU_COUNTERS)
            self._host_samples = create(paths.host_samples(node), HOST_SAMPLES)
            self._power = self._events = self._blocks = None
            if "power_mw" not in source.missing:
                self._power = create(paths.power_samples(node), POWER_SAMPLES)
            if "event" not in source.missing:
                self._events = create(paths.gpu_events(node), GPU_EVENTS)
            if rates_alternate:
                self._blocks = create(paths.sampler_blocks(node), SAMPLER_BLOCKS)
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

    def _create(self, opened: ExitStack, path: Path, columns: Sequence[Column]) -> SampleFile:
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
