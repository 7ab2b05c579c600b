"""Idle, a steady load, cooling and bursts, under the eyes of the real sampler."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring.parts import Log
from benchmarks.measuring.processes import SamplerProcess
from research.measuring import polling
from research.measuring.load import Load, bursts
from research.measuring.phase_energy import tell_energy
from research.measuring.phase_heat import tell_slots, tell_time_constants

#: rows of the matrices: power at its highest
MATRIX = 8192
#: the phases, in seconds
IDLE_S, STEADY_S, COOLING_S, BURSTS_S, REST_S = 5.0, 63.5, 31.0, 62.0, 2.5


class Phases:
    """One recording of all GPUs, and what it says of energy, of heat and of the slots."""

    def __init__(self, gpus: int, worker: Load, directory: Path, log: Log) -> None:
        """``directory`` is a new one for the sampler's files."""
        self.gpus = gpus
        self._worker = worker
        self._directory = directory
        self.log = log

    def run(self) -> None:
        """Record, then analyse; an analysis that fails costs the others nothing."""
        steady = (IDLE_S, IDLE_S + STEADY_S)
        bursting_s = (steady[1] + COOLING_S, steady[1] + COOLING_S + BURSTS_S)
        edges = polling.Poller("counter edges", range(self.gpus))
        try:
            sampler = SamplerProcess(self._directory, self.gpus, 10.0)
        except RuntimeError:
            edges.close()
            raise
        try:
            time.sleep(1.5)  # the sampler's first readings of everything are behind it
            cpu_before, from_s = sampler.cpu_s(), time.time()
            begin = self._worker.begin([steady, *bursts(*bursting_s)], MATRIX)
            worked = self._worker.finish(bursting_s[1] + 60)
            time.sleep(REST_S)  # the driver's samples of the last seconds are still to come
            cpu_s, until_s = sampler.cpu_s() - cpu_before, time.time()
            memory_bytes = sampler.memory_bytes()
            seen = edges.finish()
            end = sampler.stop()
        finally:
            edges.close()
            if sampler.process.poll() is None:
                sampler.end()
        self.log.row(
            "phases-raw",
            begin_unix_s=begin,
            steady=steady,
            bursts=bursting_s,
            worked=worked,
            counter_edges=seen,
        )
        achieved = sampler.achieved(from_s, until_s)
        share = cpu_s / (until_s - from_s)
        self.log.row(
            "sampler",
            rate_hz=10.0,
            cpu_share=share,
            memory_bytes=memory_bytes,
            end=end,
            seconds=until_s - from_s,
            **achieved,
        )
        self.log.say(
            f"sampler at 10 Hz × {self.gpus} GPUs for {until_s - from_s:.0f} s, a core busy with "
            f"counter edges beside it: {100 * share:.3f} % of a core, "
            f"{memory_bytes / 1e6:.1f} MB, {100 * achieved['delivered']:.3f} % delivered, lateness "
            f"p99 {achieved['lateness_p99_ms']:.2f} ms; late {end.late_samples}, missed "
            f"{end.missed_samples}, errors {dict(end.errors) or 'none'}"
        )
        # What begins with a load begins with all GPUs'; the slowest to start begins it.
        loaded = (max(spans[0][0] for spans in worked), min(spans[0][1] for spans in worked))
        bursting = (begin + bursting_s[0], begin + bursting_s[1])
        for analyse in (
            lambda: tell_energy(self.log, sampler, seen, loaded, bursting),
            lambda: tell_time_constants(
                self.log, self.gpus, sampler, loaded, begin + bursting_s[0]
            ),
            lambda: tell_slots(self.log, self.gpus, sampler, loaded),
        ):
            self._try(analyse)

    def _try(self, analyse: Callable[[], None]) -> None:
        try:
            analyse()
        except Exception as error:  # the recording is kept, and the other analyses go on
            self.log.say(f"FAILED:\n{traceback.format_exc()}")
            self.log.row("phases", error=f"{type(error).__name__}: {error}")
