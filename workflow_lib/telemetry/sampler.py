"""The sampling process of a node, from its first readings until it is told to stop.

Ticks follow the monotonic clock, so setting the wall clock does not move them. Rows have times of
the wall clock, as training's steps have. If rates alternate, the wall clock decides which rate is
in force.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import time
from types import FrameType

from workflow_lib.records.nodes import TelemetryEnd, TelemetryStart
from workflow_lib.records.paths import RunPaths, boot_id, code_sha256, job_id
from workflow_lib.records.whole_files import write_json
from workflow_lib.telemetry.devices.host import Host
from workflow_lib.telemetry.files import NodeLock
from workflow_lib.telemetry.recorder import Recorder
from workflow_lib.telemetry.schedule import (
    Block,
    BlockCost,
    Deadlines,
    Rates,
    block_at,
    check_rates,
    own_memory_bytes,
)
from workflow_lib.telemetry.source import Source

#: how long rows wait in memory at most, and a request to stop may go unnoticed
_SECOND_S = 1.0
#: the work of every second waits up to this long for a tick, because waking up costs as much as
#: reading two GPUs
_TOGETHER_S = 0.05
#: a call for an energy counter takes less (3.7 ms on H200). If a tick comes sooner, it comes first
_ENERGY_CALL_S = 0.006
#: how often the sampler checks at low rates whether it must end
_LOOK_EVERY_S = 0.5


class Sampler:
    """Samples one node into one run's directory."""

    def __init__(
        self,
        paths: RunPaths,
        node: str,
        rates: Rates,
        source: Source,
        host: Host,
        seed: int = 0,
        sets_limits: bool = False,
    ) -> None:
        """``seed`` orders rates that alternate. ``sets_limits`` says that the job changes the GPUs'
        power limits, so that those at the end mean nothing.

        Raises TelemetryError for a rate that the sampler cannot keep.
        """
        check_rates(rates)
        self._paths = paths
        self._node = node
        self._rates = rates
        self._seed = seed
        self._sets_limits = sets_limits
        self._source = source
        self._host = host
        self._parent = os.getppid()
        self._stopping = False
        self._ticks = 0
        self._late_ticks = 0
        self._missed_ticks = 0

    def run(self) -> None:
        """Sample until told to stop. Then write the record of the sampler's end.

        Raises TelemetryError if another sampler runs or a file cannot be written, and OSError if
        the directory cannot be created.
        """
        self._paths.telemetry.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        lock = NodeLock(self._paths.telemetry_lock(self._node))
        try:
            recorder = Recorder(
                self._paths,
                self._node,
                self._source,
                self._host,
                rates_alternate=bool(self._rates.interleaved_rates_hz),
            )
            try:
                self._write_start()
                self._record(recorder)
            finally:
                recorder.close()
            self._write_end()
        finally:
            lock.release()

    def _record(self, recorder: Recorder) -> None:
        # Objects that live until the end are left out of later garbage collections.
        gc.collect()
        gc.freeze()
        recorder.everything()
        self._paths.telemetry_ready(self._node).touch()
        seconds = Deadlines(time.monotonic() + _SECOND_S, _SECOND_S)
        while not self._stopping:
            block = block_at(self._rates, self._seed, time.time())
            cost = BlockCost(block.rate_hz)
            ticks = self._sample_block(block, recorder, seconds)
            self._ticks += ticks.begun
            self._late_ticks += ticks.late
            self._missed_ticks += ticks.missed
            recorder.block(cost.row(ticks.begun, ticks.late, ticks.missed))
        # The last rows hold all readings, so that counters cover the run to its end.
        recorder.everything()

    def _sample_block(self, block: Block, recorder: Recorder, seconds: Deadlines) -> Deadlines:
        reads = block.rate_hz > 0
        start_s = time.monotonic()
        # At rate 0 no tick is ever due.
        ticks = Deadlines(start_s, 1 / block.rate_hz) if reads else Deadlines(math.inf, 1)
        recorder.restart_rounds(start_s)
        while not self._stopping and block.holds(unix_time_s := time.time()):
            self._stopping |= recorder.asked_to_stop
            energy_s = max(recorder.energy_due_s, time.monotonic()) if reads else math.inf
            if energy_s < ticks.next_s < energy_s + _ENERGY_CALL_S:
                energy_s = ticks.next_s
            next_s = min(ticks.next_s, seconds.next_s + _TOGETHER_S, energy_s)
            wait_s = min(next_s - time.monotonic(), block.end_unix_s - unix_time_s, _LOOK_EVERY_S)
            time.sleep(max(0.0, wait_s))
            now_s = time.monotonic()
            if now_s >= ticks.next_s:
                recorder.tick(now_s, ticks.begin(now_s))
            if now_s >= energy_s:
                recorder.energy(time.monotonic())
            if now_s >= seconds.next_s:
                seconds.begin(now_s)
                if reads:
                    recorder.second()
                else:
                    recorder.rest()
                # End if the parent is gone: no process is left to stop this one.
                self._stopping |= os.getppid() != self._parent
        ticks.end(time.monotonic())
        return ticks

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _write_start(self) -> None:
        source = self._source
        write_json(
            self._paths.telemetry_start(self._node),
            TelemetryStart(
                node=self._node,
                source=source.name,
                simulated=source.name == "simulated",
                started_unix_s=time.time(),
                sample_rate_hz=self._rates.sample_rate_hz,
                gpus=tuple(source.gpus),
                missing={**source.missing, **self._host.missing},
                other_gpus=tuple(source.others),
                boot_id=boot_id(),
                job_id=job_id(),
                code_sha256=code_sha256(),
            ),
        )

    def _write_end(self) -> None:
        write_json(
            self._paths.telemetry_end(self._node),
            TelemetryEnd(
                node=self._node,
                ended_unix_s=time.time(),
                # Plus the first and the last rows, which have no deadline.
                samples=self._ticks + 2,
                late_samples=self._late_ticks,
                missed_samples=self._missed_ticks,
                errors=dict(self._source.errors + self._host.errors),
                cpu_time_s=time.process_time(),
                peak_memory_bytes=own_memory_bytes("VmHWM"),
                power_limits_w=(
                    None if self._sets_limits else tuple(self._source.power_limits_w())
                ),
            ),
        )
