"""The sampling loop: a row for every GPU at every tick, a row for the host every second.

::

    tick    0         1         2         3    …    deadlines start + n·period, monotonic clock
    GPU     0 1 2 3   0 1 2 3   0 1 2 3   0 1 2 3   each row with the wall clock of its own reading
    slow    * * * *       *         *         *     each GPU about once a second, in turn
    second  flush, host row, look for the stop file and the parent

A tick that comes more than half a period late is counted; deadlines that have passed altogether
are skipped, never made up for, so that the load of the node cannot pile up ticks.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType

from workflow_lib import records
from workflow_lib.telemetry.files import NodeLock, SampleFile
from workflow_lib.telemetry.host import Host
from workflow_lib.telemetry.source import Source, TelemetryError

#: at most this long do rows wait in memory, and does a request to stop go unseen
_SECOND_S = 1.0


class Sampler:
    """Samples one node into one run's directory."""

    def __init__(
        self,
        paths: records.RunPaths,
        node: str,
        cell: records.Cell,
        source: Source,
        host: Host,
    ) -> None:
        self._paths = paths
        self._node = node
        self._source = source
        self._host = host
        self._rate_hz = cell.telemetry.sample_rate_hz
        self._period_s = 1 / self._rate_hz
        self._parent = os.getppid()
        self._stopping = False
        self._samples = 0
        self._late_samples = 0

    def run(self) -> None:
        """Sample until told to stop; then write what was done.

        Raises TelemetryError where another sampler is at work or a file cannot be written, OSError
        where the directory cannot be.
        """
        self._paths.telemetry.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        lock = NodeLock(self._paths.telemetry_lock(self._node))
        try:
            self._sample_all()
        finally:
            lock.release()

    def _sample_all(self) -> None:
        gpu_file = SampleFile(self._paths.gpu_samples(self._node), records.GPU_SAMPLES)
        host_file = SampleFile(self._paths.host_samples(self._node), records.HOST_SAMPLES)
        self._write_start()
        try:
            self._loop(gpu_file, host_file)
        finally:
            # A full disk fails here once more; the first error is the one that is reported.
            gpu_file.close()
            host_file.close()
        self._write_end()

    def _loop(self, gpu_file: SampleFile, host_file: SampleFile) -> None:
        count = len(self._source.gpus)
        ticks_per_second = max(1, round(self._rate_hz * _SECOND_S))
        start = time.monotonic()
        self._tick(gpu_file, range(count))
        self._sample_host(host_file)
        gpu_file.flush()
        host_file.flush()
        self._paths.telemetry_ready(self._node).touch()
        tick, next_second = 1, start + _SECOND_S
        while True:
            deadline = start + tick * self._period_s
            time.sleep(max(0.0, min(deadline, next_second) - time.monotonic()))
            now = time.monotonic()
            if now >= next_second:
                gpu_file.flush()
                self._sample_host(host_file)
                host_file.flush()
                next_second += _SECOND_S * (1 + int((now - next_second) / _SECOND_S))
                if self._should_stop():
                    break
            if self._stopping:
                break
            if now >= deadline:
                self._late_samples += now > deadline + self._period_s / 2
                turn = tick % ticks_per_second
                self._tick(
                    gpu_file, {g for g in range(count) if g * ticks_per_second // count == turn}
                )
                tick = max(tick + 1, 1 + int((now - start) / self._period_s))
        # The last rows hold everything, so that counters reach to the end.
        self._tick(gpu_file, range(count))
        self._sample_host(host_file)

    def _tick(self, gpu_file: SampleFile, slow: range | set[int]) -> None:
        self._samples += 1
        for gpu in range(len(self._source.gpus)):
            started = time.perf_counter()
            unix_time_s = round(time.time(), 6)
            values = dict(self._source.read(gpu, unix_time_s, slow=gpu in slow))
            values["unix_time_s"] = unix_time_s
            values["gpu"] = gpu
            values["read_cost_s"] = time.perf_counter() - started
            gpu_file.add(values)

    def _sample_host(self, host_file: SampleFile) -> None:
        host_file.add({"unix_time_s": time.time(), **self._host.read()})

    def _should_stop(self) -> bool:
        # Whoever started the sampler ends it; a sampler that nobody can end any more ends itself.
        return self._paths.telemetry_stop.exists() or os.getppid() != self._parent

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _write_start(self) -> None:
        source = self._source
        records.write_json(
            self._paths.telemetry_start(self._node),
            records.TelemetryStart(
                node=self._node,
                source=source.name,
                simulated=source.name == "simulated",
                started_unix_s=time.time(),
                sample_rate_hz=self._rate_hz,
                gpus=tuple(source.gpus),
                missing={**source.missing, **self._host.missing},
            ),
        )

    def _write_end(self) -> None:
        records.write_json(
            self._paths.telemetry_end(self._node),
            records.TelemetryEnd(
                node=self._node,
                ended_unix_s=time.time(),
                samples=self._samples,
                late_samples=self._late_samples,
                errors=dict(self._source.errors + self._host.errors),
                cpu_time_s=time.process_time(),
                peak_memory_bytes=_peak_memory_bytes(),
            ),
        )


def _peak_memory_bytes() -> int:
    """This process's largest resident set.

    Not getrusage's, which on Linux also counts what the process was before it became Python: a copy
    of whoever started it.
    """
    with Path("/proc/self/status").open(encoding="ascii", errors="replace") as stream:
        for line in stream:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise TelemetryError("/proc/self/status has no VmHWM line; this needs Linux")
