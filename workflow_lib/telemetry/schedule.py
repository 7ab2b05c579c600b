"""When a node is sampled: ticks at their deadlines, at rates that may alternate by blocks.

The effect of sampling on training can only be measured within one run, because two runs differ by
more than the effect. So the rate changes every ``block_s``::

    unix time    0        block_s    2·block_s   3·block_s   4·block_s     the same on every node
    block        │    0   │    1     │    2      │    3      │    4     …
    rate         └──────── each once, shuffled ──────────────┘└─ each once, shuffled anew ─…

Blocks are numbered from the epoch, so all nodes change their rates together without communication.
Deadlines are on the monotonic clock.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workflow_lib.telemetry.source import TelemetryError, Value

#: at higher rates, reading eight GPUs would take a large part of a period
HIGHEST_RATE_HZ = 50.0


class Rates(Protocol):
    """How often a node is sampled; ``cell.telemetry`` is one."""

    @property
    def sample_rate_hz(self) -> float:
        """Ticks a second, unless rates alternate."""
        ...

    @property
    def interleaved_rates_hz(self) -> Sequence[float]:
        """Rates that alternate; empty if they do not."""
        ...

    @property
    def block_s(self) -> float:
        """How long each of them holds."""
        ...


def check_rates(telemetry: Rates) -> None:
    """Raise TelemetryError if the sampler cannot keep one of the rates, or blocks are too short."""
    rate_hz = telemetry.sample_rate_hz
    if not 0 < rate_hz <= HIGHEST_RATE_HZ:
        raise TelemetryError(
            f"telemetry.sample_rate_hz is {rate_hz:g}, but must be above 0 and at most "
            f"{HIGHEST_RATE_HZ:g}; correct the sweep's protocol and render the run again"
        )
    for rate_hz in telemetry.interleaved_rates_hz:
        if not 0 <= rate_hz <= HIGHEST_RATE_HZ:
            raise TelemetryError(
                f"telemetry.interleaved_rates_hz has {rate_hz:g}, but rates are from 0 (nothing is "
                f"read) to {HIGHEST_RATE_HZ:g}; correct the sweep's protocol and render the run "
                "again"
            )
    if telemetry.interleaved_rates_hz and not 1 <= telemetry.block_s < math.inf:
        raise TelemetryError(
            f"telemetry.block_s is {telemetry.block_s:g}, but rates that alternate need blocks of "
            "at least 1 s; correct the sweep's protocol and render the run again"
        )


def rate_of_block(telemetry: Rates, seed: int, block: int) -> float:
    """The sampling rate in a block, in Hz. ``block`` is ⌊unix time / block_s⌋.

    With n rates, each round of n blocks has every rate once. Their order depends only on the seed
    and the number of the round.
    """
    rates = list(telemetry.interleaved_rates_hz)
    round_number, place = divmod(block, len(rates))
    random.Random(f"{seed}/{round_number}").shuffle(rates)
    return rates[place]


@dataclass(frozen=True)
class Block:
    """A span of the wall clock with one rate. If rates do not alternate, it has no end."""

    rate_hz: float
    begin_unix_s: float = -math.inf
    end_unix_s: float = math.inf

    def holds(self, unix_time_s: float) -> bool:
        """Whether a time is in the block. If the clock is set, it may be before or after it."""
        return self.begin_unix_s <= unix_time_s < self.end_unix_s


def block_at(telemetry: Rates, seed: int, unix_time_s: float) -> Block:
    """The block at a time."""
    if not telemetry.interleaved_rates_hz:
        return Block(telemetry.sample_rate_hz)
    number = math.floor(unix_time_s / telemetry.block_s)
    return Block(
        rate_of_block(telemetry, seed, number),
        number * telemetry.block_s,
        (number + 1) * telemetry.block_s,
    )


class BlockCost:
    """Measures what a block costs the sampler, from construction to ``row``."""

    def __init__(self, rate_hz: float) -> None:
        self._rate_hz = rate_hz
        self._started_unix_s = time.time()
        self._cpu_time_s = time.process_time()

    def row(self, ticks: int, late_ticks: int, missed_ticks: int) -> Mapping[str, Value]:
        """Column → value, in the units of SAMPLER_BLOCKS."""
        return {
            "started_unix_s": self._started_unix_s,
            "ended_unix_s": time.time(),
            "sample_rate_hz": self._rate_hz,
            "ticks": ticks,
            "late_ticks": late_ticks,
            "missed_ticks": missed_ticks,
            "cpu_time_s": time.process_time() - self._cpu_time_s,
            "memory_bytes": own_memory_bytes("VmRSS"),
        }


def own_memory_bytes(line: str) -> int:
    """This process's resident memory (VmRSS) or its highest value so far (VmHWM), in bytes.

    getrusage is not used: on Linux its peak includes the time before exec, when the process was
    still a copy of its parent.
    """
    with Path("/proc/self/status").open(encoding="ascii", errors="replace") as stream:
        for text in stream:
            if text.startswith(f"{line}:"):
                return int(text.split()[1]) * 1024
    raise TelemetryError(f"/proc/self/status has no line {line}; this needs Linux")


class Deadlines:
    """Deadlines that do not drift. Missed ones are skipped.

    ::

        deadlines   0     1     2     3     4     5        start + n · period
        begun       0     1           ··2         5        2 late, 3 and 4 missed

    So a node under load does not pile up ticks.
    """

    def __init__(self, start_s: float, period_s: float) -> None:
        """The first deadline is ``start_s``; if that is infinite, no tick is ever due."""
        self._start_s = start_s
        self._period_s = period_s
        self._number = 0
        self.begun = 0
        #: those of them that began over half a period late
        self.late = 0
        #: deadlines that were skipped
        self.missed = 0

    @property
    def next_s(self) -> float:
        """The next deadline, on the monotonic clock."""
        return self._start_s + self._number * self._period_s

    def begin(self, now_s: float) -> float:
        """Begin the tick that is due. Returns by how many seconds it is late."""
        lateness_s = now_s - self.next_s
        self.begun += 1
        self.late += lateness_s > self._period_s / 2
        passed = math.floor((now_s - self._start_s) / self._period_s)
        following = max(self._number, passed) + 1
        self.missed += following - self._number - 1
        self._number = following
        return lateness_s

    def end(self, now_s: float) -> None:
        """Begin no more ticks. Those that were due by now count as missed."""
        if now_s >= self.next_s:
            due = math.floor((now_s - self._start_s) / self._period_s) + 1
            self.missed += max(due - self._number, 1)
