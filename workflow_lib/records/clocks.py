"""How far a node's clock is ahead of the first node's: measured in the job, before and after.

The first rank of each other node asks rank 0 for its time, again and again, and keeps the quickest
answer: it was given somewhere between question and answer, so that half of that time bounds the
error, whatever the ways there and back take::

    this node   ──t0────────────t3──      ahead = (t0 + t3) / 2 − T,   error = (t3 − t0) / 2
    rank 0      ────────T───────────

Between the two comparisons the difference is a straight line: quartzes drift steadily, by up to
about 100 ppm, and time daemons turn a clock by 500 ppm at most. What changes faster was set.
"""

from __future__ import annotations

from dataclasses import dataclass

#: the fastest that clocks drift, or are turned without being set (adjtimex(2))
_FASTEST_DRIFT = 500e-6


@dataclass(frozen=True)
class ClockReading:
    """One comparison with the clock of rank 0's node."""

    #: of this node's clock
    unix_time_s: float
    #: this node's time less rank 0's
    ahead_s: float
    #: bound of what ``ahead_s`` may be off by
    error_s: float


@dataclass(frozen=True)
class NodeClock:
    """``steps/clock-<node>.json``: of each node, in runs of several."""

    node: str
    #: before the first step and after the last; null where there is a reason
    before: ClockReading | None
    after: ClockReading | None
    #: why clocks were not compared, "" where they were
    reason: str = ""

    @property
    def drift(self) -> float:
        """Seconds that it gains a second; 0 where it was compared less than twice."""
        if self.before is None or self.after is None:
            return 0.0
        elapsed_s = self.after.unix_time_s - self.before.unix_time_s
        gained_s = self.after.ahead_s - self.before.ahead_s
        return gained_s / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def skew_s(self) -> float:
        """The furthest that it was seen ahead or behind."""
        return max((abs(each.ahead_s) for each in (self.before, self.after) if each), default=0.0)

    @property
    def error_s(self) -> float:
        """What its times may be off by once they are corrected.

        Where it was set between the comparisons, nobody knows when, that is by how much.
        """
        if self.before is None or self.after is None:
            return 0.0
        error_s = max(self.before.error_s, self.after.error_s)
        elapsed_s = self.after.unix_time_s - self.before.unix_time_s
        gained_s = abs(self.after.ahead_s - self.before.ahead_s)
        allowed_s = _FASTEST_DRIFT * elapsed_s + self.before.error_s + self.after.error_s
        return error_s if elapsed_s > 0 and gained_s <= allowed_s else error_s + gained_s

    def ahead_at(self, unix_time_s: float) -> float:
        """How far it was ahead when it showed a time."""
        if self.before is None:
            return 0.0
        return self.before.ahead_s + self.drift * (unix_time_s - self.before.unix_time_s)
