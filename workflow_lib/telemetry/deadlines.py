"""When ticks are due: at a start and a number of periods after it, on the monotonic clock."""

from __future__ import annotations

import math


class Deadlines:
    """Deadlines that do not drift, and of which those that have passed are never made up for.

    ::

        deadlines   0     1     2     3     4     5        start + n · period
        begun       0     1           ··2         5        2 late, 3 and 4 missed

    So that a node under load cannot pile up ticks.
    """

    def __init__(self, start_s: float, period_s: float) -> None:
        """The first deadline is ``start_s``; where that is infinite, nothing is ever due."""
        self._start_s = start_s
        self._period_s = period_s
        self._number = 0
        self.begun = 0
        #: of them, those that began over half a period late
        self.late = 0
        #: deadlines that passed altogether
        self.missed = 0

    @property
    def next_s(self) -> float:
        """The next deadline, on the monotonic clock."""
        return self._start_s + self._number * self._period_s

    def begin(self, now_s: float) -> float:
        """Begin what is due; returns by how many seconds it is late."""
        lateness_s = now_s - self.next_s
        self.begun += 1
        self.late += lateness_s > self._period_s / 2
        passed = math.floor((now_s - self._start_s) / self._period_s)
        following = max(self._number, passed) + 1
        self.missed += following - self._number - 1
        self._number = following
        return lateness_s

    def end(self, now_s: float) -> None:
        """Nothing is begun any more; what was due by now is missed."""
        if now_s >= self.next_s:
            due = math.floor((now_s - self._start_s) / self._period_s) + 1
            self.missed += max(due - self._number, 1)
