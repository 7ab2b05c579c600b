"""Lets one thread at a time submit, in the order of the runs.

Snakemake starts many runs at once, in threads and in no order. Slurm starts jobs in the order of
their submission, so without turns the order of a sweep's runs would be arbitrary.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from workflow_lib.launch import interruption

#: the first turn begins this long after the last thread came, so that threads that were started
#: together are all there
SETTLE_S = 1.0
#: while threads keep coming, the wait ends after this long
_LONGEST_SETTLE_S = 10.0
_LOOK_EVERY_S = 0.5


class Turns:
    """A lock that waiting threads get in the order of place, then of arrival."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets = itertools.count()
        self._waiting: set[tuple[int, int]] = set()
        self._is_taken = False
        self._first_came_s = 0.0
        self._last_came_s = 0.0

    @contextmanager
    def turn(self, place: int) -> Iterator[None]:
        """Wait for this thread's turn, and hold the lock. Raises InterruptedRunError."""
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
        """How long to wait before looking again, in s; 0 or less if it is this thread's turn."""
        if self._is_taken or min(self._waiting) != mine:
            return _LOOK_EVERY_S
        settled_s = min(self._last_came_s + SETTLE_S, self._first_came_s + _LONGEST_SETTLE_S)
        return settled_s - time.monotonic()
