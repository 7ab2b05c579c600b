"""Who submits next: one thread at a time, in the order of the runs.

Snakemake starts the runs that there is room for in threads, all at once and in no order. Slurm
begins jobs in the order in which it got them, so without turns the order of a sweep's runs would
be that of a race.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from workflow_lib.launch import interruption

#: nobody goes before so long after the last one came: those that were started together are there
SETTLE_S = 0.5
#: while threads keep coming, the wait ends after this long
_LONGEST_SETTLE_S = 10.0
_LOOK_EVERY_S = 0.5


class Turns:
    """A lock that whoever waits for it gets by place, and of one place in order of arrival."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets = itertools.count()
        self._waiting: set[tuple[int, int]] = set()
        self._is_taken = False
        self._first_came_s = 0.0
        self._last_came_s = 0.0

    @contextmanager
    def turn(self, place: int) -> Iterator[None]:
        """Wait for the turn, and have it. Raises InterruptedRunError."""
        with self._changed:
            mine = self._come(place)
            try:
                while (wait_s := self._wait_s(mine)) > 0:
                    self._changed.wait(wait_s)
                    interruption.check()
                self._is_taken = True
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()

    def _come(self, place: int) -> tuple[int, int]:
        self._last_came_s = time.monotonic()
        if not self._waiting:
            self._first_came_s = self._last_came_s
        mine = place, next(self._tickets)
        self._waiting.add(mine)
        return mine

    def _wait_s(self, mine: tuple[int, int]) -> float:
        """How long to wait before looking again; 0 or less where it is this one's turn."""
        if self._is_taken or min(self._waiting) != mine:
            return _LOOK_EVERY_S
        settled_s = min(self._last_came_s + SETTLE_S, self._first_came_s + _LONGEST_SETTLE_S)
        return settled_s - time.monotonic()
