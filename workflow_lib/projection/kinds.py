"""Which kind of question a prediction answers, and how far off such predictions were.

A fit knows how uncertain its parameters are, but not whether its own form is wrong, nor how unlike
the fitted rows a new one is. So each kind of question has its own intervals (Mondrian conformal
prediction: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005, section 4.5).
They come from rows that were predicted while their model, release, site or stack was left out. A
row's distance is the logarithm of its measured over its predicted time, in standard deviations of
the fit, with its sign: the two ends of an interval are found apart, because a run can be much
slower than the fitted ones, and hardly faster. Rows of one group are alike, so a large group counts
by a few quantiles (as groups are pooled by Dunn, Wasserman and Ramdas, JASA 118(544), 2023).
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources

from workflow_lib.feasibility import INTERVAL_KINDS
from workflow_lib.words import counted

#: the nominal coverages of intervals
LEVELS = (0.5, 0.9)
FILE = resources.files("workflow_lib.projection") / "data" / "distances.csv"
#: A kind with fewer groups says little of a new one: it takes the widest ends of any tuned kind.
LEAST_GROUPS = 6
#: the kinds of published rows whose layouts were chosen
_TUNED = ("stack", "site", "release", "layout", "depth", "series")
#: the most distances that are kept of a group
_MOST_KEPT = 19
#: how the kinds of layouts that were tried begin
UNTUNED = "untuned"
#: the kind that an unseen effect makes a prediction
_BY_EFFECT = {
    "stack": "stack",
    "site": "site",
    "release": "release",
    "layer": "layout",
    "series": "depth",
    "fabric": "depth",
}


def kind(unseen: Collection[str], untuned: bool, pipeline: bool) -> str:
    """The kind of a prediction, by the kinds of effects whose group no fitted row has, and by
    whether its layout is one of many that were tried."""
    own = next((name for effect, name in _BY_EFFECT.items() if effect in unseen), "series")
    if not untuned:
        return own
    return UNTUNED + ("-stack" if own == "stack" else "") + ("-pipeline" if pipeline else "")


@dataclass(frozen=True)
class Group:
    """The distances of like rows, which were predicted without any of them."""

    kind: str
    name: str
    #: how many there were
    rows: int
    #: their distances, or as many quantiles
    distances: tuple[float, ...]

    @classmethod
    def of(cls, kind: str, name: str, distances: Sequence[float]) -> Group:
        """Of at most :data:`_MOST_KEPT` rows each is kept; of more, evenly spaced ones."""
        known = sorted(distances)
        kept = min(len(known), _MOST_KEPT)
        picked = [known[math.floor((n + 0.5) * len(known) / kept)] for n in range(kept)]
        return cls(kind, name, len(known), tuple(round(value, 3) for value in picked))


@dataclass(frozen=True)
class Widths:
    """How many standard deviations of the fit an interval reaches below and above its median."""

    kind: str
    #: level → (lower end, at most 0; upper end, at least 0)
    ends: Mapping[float, tuple[float, float]]
    rows: int
    groups: int
    #: whether these groups were enough; if not, the ends are the widest of any tuned kind
    enough: bool = True

    @classmethod
    def of(cls, kind: str, groups: Iterable[Group]) -> Widths:
        """From the distances of rows in groups; without any the ends are 0."""
        known = list(groups)
        values = sorted(value for group in known for value in group.distances)
        below = [-value for value in reversed(values)]
        ends = {level: (-_upper_end(below, level), _upper_end(values, level)) for level in LEVELS}
        return cls(kind, ends, sum(group.rows for group in known), len(known))

    def interval(self, median: float, sd: float, level: float) -> tuple[float, float]:
        """Lower and upper end about a median whose logarithm has a standard deviation."""
        low, high = self.ends[level]
        return median * math.exp(low * sd), median * math.exp(high * sd)

    def reach(self, level: float) -> float:
        """The longer end: of a ratio of two times, either of which may be the slower one."""
        low, high = self.ends[level]
        return max(-low, high)

    @staticmethod
    def log_reach(both: Iterable[Widths], variance: float, level: float) -> float:
        """How far an interval of the ratio of two times reaches from its median, as a logarithm
        that is in both directions alike; ``variance`` is that of the ratio's logarithm."""
        return max(one.reach(level) for one in both) * math.sqrt(variance)

    @property
    def description(self) -> str:
        """For which layouts the interval is, and from what its width is known."""
        rows, groups = counted(self.rows, "row"), counted(self.groups, "group")
        of = f"{INTERVAL_KINDS[self.kind]}: {rows} in {groups}"
        few = "" if self.enough else "; too few, so the interval is as wide as that of any kind"
        return of + few


def _upper_end(ascending: Sequence[float], level: float) -> float:
    """The smallest distance, at least 0, that leaves out as much as one end of an interval may, of
    one row more than there are; the largest if that is not enough."""
    if not ascending:
        return 0.0
    rank = math.ceil((1 + level) / 2 * (len(ascending) + 1))
    return max(0.0, ascending[min(rank, len(ascending)) - 1])


@functools.cache
def groups() -> tuple[Group, ...]:
    """The groups that are shipped."""
    with FILE.open(encoding="utf-8") as lines:
        return tuple(
            Group(
                row["kind"],
                row["group"],
                int(row["rows"]),
                tuple(float(value) for value in row["distances"].split()),
            )
            for row in csv.DictReader(lines)
        )


@functools.cache
def widths(kind: str, without: str = "") -> Widths:
    """The widths of a kind of published rows, from all groups but one."""
    return enough(_of(kind, without))


def _of(kind: str, without: str = "") -> Widths:
    return Widths.of(
        kind, [group for group in groups() if group.kind == kind and group.name != without]
    )


def enough(of_kind: Widths) -> Widths:
    """The widths, or the widest of any tuned kind if too few groups were measured. (No kind is
    wider than those of layouts that were tried.)"""
    if of_kind.groups >= LEAST_GROUPS or of_kind.kind.startswith(UNTUNED):
        return of_kind
    known = [tuned for tuned in map(_of, _TUNED) if tuned.groups >= LEAST_GROUPS]
    ends = {
        level: (
            min(one.ends[level][0] for one in (of_kind, *known)),
            max(one.ends[level][1] for one in (of_kind, *known)),
        )
        for level in LEVELS
    }
    return replace(of_kind, ends=ends, enough=False)
