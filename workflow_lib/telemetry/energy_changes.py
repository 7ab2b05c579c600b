"""Reads energy counters at the moments when their values change.

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

import math
import time

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
        over = (now_s - self._from_s) // spacing_s if now_s > self._from_s else 0
        self._searches = max(self._searches + 1, int(over))
        self._end_search()

    def _end_search(self) -> None:
        self._before_j, self._cost_s = None, 0.0
        self._next_s = self._from_s + self._searches * self._spacing_s if self._gpus else math.inf
