"""Chooses the readings of a cumulative counter that represent a window of time.

Counters that take milliseconds to read are read seconds apart, so readings are seldom at the
window's edges::

    reading      o         o         o         o         o
    window                 . |<--------------->|    .
                 before    first    …    last       after
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: readings inside a window represent it if they span this share of it
_ENOUGH_INSIDE = 0.8


class Reading(NamedTuple):
    """A counter's value at a time."""

    unix_time_s: float
    value: float
    #: by how much the time may be off at most, in s
    off_s: float = 0.0


@dataclass
class CounterSpan:
    """The readings of one counter around a window. Add them in order; four of them are kept."""

    start_unix_s: float
    end_unix_s: float
    #: the last reading up to the window's start, the first and the last within it, and the first
    #: from its end on
    before: Reading | None = None
    first: Reading | None = None
    last: Reading | None = None
    after: Reading | None = None
    #: whether the counter ran backwards between two readings of the window, or right across it
    fell: bool = False
    _latest: Reading | None = None
    #: whether it ran backwards from the last reading within the window to the next, which therefore
    #: tells nothing of it
    _ended: bool = False

    def add(self, unix_time_s: float, value: float, off_s: float = 0.0) -> None:
        """Take the next reading."""
        reading, latest = Reading(unix_time_s, value, off_s), self._latest
        self._latest = reading
        if latest is not None and value < latest.value:
            self._note_fall(latest, unix_time_s)
        if unix_time_s <= self.start_unix_s:
            self.before = reading
        if self.start_unix_s <= unix_time_s <= self.end_unix_s:
            self.first = self.first or reading
            self.last = reading
        if unix_time_s >= self.end_unix_s and self.after is None and not self._ended:
            self.after = reading

    def _note_fall(self, latest: Reading, unix_time_s: float) -> None:
        """Note that the counter fell from ``latest`` to a reading at ``unix_time_s``. If no more
        than one of both is within the window, the other one is left out."""
        if latest.unix_time_s >= self.end_unix_s or unix_time_s <= self.start_unix_s:
            return
        begun = self.first is not None
        ends = unix_time_s > self.end_unix_s
        self.fell |= begun != ends
        if begun and ends:
            self._ended = True
        elif not begun and not ends:
            self.before = None

    def ends(self) -> tuple[Reading, Reading] | None:
        """The two readings whose difference represents the window best; None if there are none.

        They are the first and the last inside the window if these span 80 % of it, because their
        difference includes nothing from outside. Otherwise they are the two around the window.
        """
        duration_s = self.end_unix_s - self.start_unix_s
        if self.first is not None and self.last is not None:
            inside_s = self.last.unix_time_s - self.first.unix_time_s
            if inside_s > 0 and inside_s >= _ENOUGH_INSIDE * duration_s:
                return self.first, self.last
        return self.around()

    def around(self) -> tuple[Reading, Reading] | None:
        """The last reading before the window and the first after it; None if one is missing."""
        if self.before is None or self.after is None:
            return None
        return self.before, self.after

    def nearest(self) -> tuple[Reading, Reading] | None:
        """The readings nearest to the window's start and to its end, inside or outside of it.

        If one reading is nearest to both, those around the window. None if one is missing.
        """
        at_start = _nearest(self.start_unix_s, self.before, self.first)
        at_end = _nearest(self.end_unix_s, self.after, self.last)
        if at_start is None or at_end is None:
            return None
        return (at_start, at_end) if at_start.unix_time_s < at_end.unix_time_s else self.around()


def _nearest(unix_time_s: float, *readings: Reading | None) -> Reading | None:
    known = [reading for reading in readings if reading is not None]
    return min(known, key=lambda r: abs(r.unix_time_s - unix_time_s), default=None)
