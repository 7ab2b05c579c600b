"""Sessions: runs on one set of GPUs without a long pause.

Hosts differ, and so do dates. Where a campaign went on over several hosts or dates, these effects
are alike only for runs of one session::

    GPUs   1 1 1   1 1      2 2 2        a pause parts the first runs on GPUs 1 from the others
    runs   a b a   b a      b a b
    session  0      1         2

A run *counts* if its session has a run of both sides. The others say nothing about the difference
of the sides within a session. Times and GPUs alone decide this, never a measured value.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: A longer pause between the starts of two runs ends a session. A date is an effect too: after a
#: night the room, the load of other users and the host's own state may be others. Waiting in a
#: queue, or repeating a run, takes less.
LONGEST_PAUSE_S = 6 * 3600.0


@dataclass(frozen=True)
class Sessions:
    """The session of each run of two cells, and the run's place in it."""

    #: numbers of sessions with runs of both sides, in the order in which they began; None for a run
    #: that does not count
    of_a: tuple[int | None, ...]
    of_b: tuple[int | None, ...]
    #: places by the times at which runs began, among the runs of both sides in the session
    places_a: tuple[int, ...]
    places_b: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many sessions have runs of both sides."""
        return len({*self.of_a, *self.of_b} - {None})

    @property
    def left_out(self) -> int:
        """How many runs do not count."""
        return (*self.of_a, *self.of_b).count(None)

    @property
    def left_out_because(self) -> str:
        """How many runs do not count, and why, in words; "" if all count."""
        if not self.left_out:
            return ""
        runs = "1 run is" if self.left_out == 1 else f"{self.left_out} runs are"
        return f"{runs} left out, because no run of the other side was in the session"

    @property
    def fewest_runs(self) -> int:
        """The number of counted runs, of the side that has fewer."""
        return min(len(side) - side.count(None) for side in (self.of_a, self.of_b))

    @property
    def is_one_side_first(self) -> bool:
        """Whether in every session all runs of one side began before all of the other, and it was
        the same side each time."""
        firsts = {self._first(number) for number in range(self.count)}
        return len(firsts) == 1 and firsts != {""}

    def _first(self, number: int) -> str:
        """Which side began all of its runs of a session before the other, a or b; "" if none."""
        a, b = (
            [place for session, place in zip(of, places, strict=True) if session == number]
            for of, places in ((self.of_a, self.places_a), (self.of_b, self.places_b))
        )
        if max(a) < min(b):
            return "a"
        return "b" if max(b) < min(a) else ""


def sessions(
    began_a: Sequence[float],
    began_b: Sequence[float],
    gpus_a: Sequence[Hashable],
    gpus_b: Sequence[Hashable],
) -> Sessions:
    """The sessions of runs, from the times in s at which they began and their sets of GPUs."""
    began, gpus = [*began_a, *began_b], [*gpus_a, *gpus_b]
    found: list[list[int]] = []
    for gpu in dict.fromkeys(gpus):
        own = [run for run, of_run in enumerate(gpus) if of_run == gpu]
        own.sort(key=lambda run: (began[run], run))
        found.append(own[:1])
        for before, after in pairwise(own):
            if began[after] - began[before] > LONGEST_PAUSE_S:
                found.append([])
            found[-1].append(after)
    found.sort(key=lambda of_session: began[of_session[0]])
    sides = len(began_a)
    both = [runs for runs in found if min(runs) < sides <= max(runs)]
    session = {run: number for number, runs in enumerate(both) for run in runs}
    place = {run: number for runs in found for number, run in enumerate(runs)}
    of = tuple(session.get(run) for run in range(len(began)))
    places = tuple(place[run] for run in range(len(began)))
    return Sessions(of[:sides], of[sides:], places[:sides], places[sides:])
