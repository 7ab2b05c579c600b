"""Deadlines of ticks: at a start time and then once a period, on the monotonic clock."""

from __future__ import annotations

import math


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
