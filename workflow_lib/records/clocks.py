"""How far a node's clock is ahead of the first node's, measured before and after training.

The first rank of each other node asks rank 0 for its time, many times, and keeps the quickest
answer. Rank 0 read its clock at some time between question and answer, so half of the time between
them bounds the error, however long the messages took in each direction::

    this node   ──t0────────────t3──      ahead = (t0 + t3) / 2 − T,   error = (t3 − t0) / 2
    rank 0      ────────T───────────

Between the two comparisons the difference is taken as a straight line: quartz clocks drift
steadily, by up to about 100 ppm, and time daemons slew a clock by 500 ppm at most. If the
difference changed faster, the clock was set.
"""

from __future__ import annotations

from dataclasses import dataclass

#: the fastest that clocks drift or are slewed, in s per s (adjtimex(2))
_FASTEST_DRIFT = 500e-6


@dataclass(frozen=True)
class ClockReading:
    """One comparison with the clock of rank 0's node."""

    #: when it was made, by this node's clock
    unix_time_s: float
    #: this node's time minus rank 0's
    ahead_s: float
    #: bound of the error of ``ahead_s``
    error_s: float


@dataclass(frozen=True)
class NodeClock:
    """``steps/clock-<node>.json``: the clock of one node, in runs of several nodes."""

    node: str
    #: before the first step and after the last; null if there is a ``reason``
    before: ClockReading | None
    after: ClockReading | None
    #: why clocks were not compared; "" if they were
    reason: str = ""

    @property
    def drift(self) -> float:
        """Seconds that the clock gains per second; 0 if it was compared less than twice."""
        if self.before is None or self.after is None:
            return 0.0
        elapsed_s = self.after.unix_time_s - self.before.unix_time_s
        gained_s = self.after.ahead_s - self.before.ahead_s
        return gained_s / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def skew_s(self) -> float:
        """The largest difference from rank 0's clock in a comparison, in s, without its sign."""
        return max((abs(each.ahead_s) for each in (self.before, self.after) if each), default=0.0)

    @property
    def error_s(self) -> float:
        """The largest error of the node's times after they are corrected, in s.

        If the clock was set between the comparisons, at an unknown time, the error includes the
        whole change.
        """
        if self.before is None or self.after is None:
            return 0.0
        error_s = max(self.before.error_s, self.after.error_s)
        elapsed_s = self.after.unix_time_s - self.before.unix_time_s
        gained_s = abs(self.after.ahead_s - self.before.ahead_s)
        allowed_s = _FASTEST_DRIFT * elapsed_s + self.before.error_s + self.after.error_s
        return error_s if elapsed_s > 0 and gained_s <= allowed_s else error_s + gained_s

    def ahead_at(self, unix_time_s: float) -> float:
        """How far the clock was ahead, in s, when it showed ``unix_time_s``."""
        if self.before is None:
            return 0.0
        return self.before.ahead_s + self.drift * (unix_time_s - self.before.unix_time_s)
