"""Runs of one cell at several limits of its GPUs: what a sweep measured of a power limit, or of a
locked clock.

A level is a limit that all GPUs of a run had. A cell that sets limits says it. One that sets none
has the power limit that its runs recorded as in force. What its clocks may be is not recorded; they
are as under a lock that no GPU reaches. Such locks are one level, at the highest clock of a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from workflow_lib.placement.readings import Measured
from workflow_lib.records import Cell
from workflow_lib.words import counted

#: a run
Key = tuple[str, int]

#: levels that make a curve, and runs that make a level
_FEWEST_LEVELS, _FEWEST_RUNS = 3, 2


@dataclass(frozen=True)
class Lever:
    """A setting of GPUs that a cell can have limits of."""

    #: the field of Training
    key: str
    #: as people call it
    name: str
    unit: str
    #: of the limits that are looked at
    step: int

    def of(self, cell: Cell) -> tuple[int, ...]:
        """The limits that a cell sets, one for each GPU of a node; () where it sets none."""
        limits: tuple[int, ...] = getattr(cell.training, self.key)
        return limits

    def set_on(self, cell: Cell, limits: tuple[int, ...]) -> Cell:
        """The cell with other limits, under the same name."""
        changed: dict[str, Any] = {self.key: limits}
        return dataclasses.replace(cell, training=dataclasses.replace(cell.training, **changed))


POWER = Lever("power_limits_w", "power limit", "W", 5)
CLOCK = Lever("clock_limits_mhz", "locked clock", "MHz", 15)
LEVERS = POWER, CLOCK


@dataclass(frozen=True)
class Levels:
    """Completed runs of a cell at several levels of one lever."""

    lever: Lever
    #: the cell's own; None where it sets none, and none is known
    own: float | None
    as_it_is: tuple[Key, ...]
    #: level → its runs, without the cell's own level
    others: Mapping[float, tuple[Key, ...]]
    #: of all GPUs, in the runs of the cell as it is
    mean_clock_mhz: float
    #: a limit that GPUs do not reach, and so none to them, where one was measured
    unreached: int | None = None

    @property
    def every(self) -> tuple[float, ...]:
        """All levels, the lowest first."""
        return tuple(sorted({*self.others} | ({self.own} if self.own is not None else set())))

    @property
    def runs(self) -> int:
        """Of all levels."""
        return len(self.as_it_is) + sum(map(len, self.others.values()))

    def level(self, limit: float) -> float:
        """Where a limit is among the levels: one that GPUs do not reach is at the highest."""
        return limit if self.unreached is None else min(limit, self.every[-1])


def found(measured: Measured, cell: Cell, lever: Lever) -> Levels | str | None:
    """The levels that a sweep measured of a cell; why they are too few, or cannot be used; or None
    where no run tried the lever.
    """
    plain = _but_limits(cell, lever)
    of_cells = {
        run.cell.id: run.cell for run in measured.runs if _but_limits(run.cell, lever) == plain
    }
    if {lever.of(each) for each in of_cells.values()} <= {lever.of(cell)}:
        return None
    if len(set(lever.of(cell))) > 1:
        return f"the cell's own {lever.name}s differ between GPUs"
    runs: dict[float | None, list[Key]] = {}
    for key in sorted({each.key for each in measured.readings if each.cell in of_cells}):
        its = of_cells[key[0]]
        if its.id == cell.id or len(set(lever.of(its))) < 2:
            runs.setdefault(_level(measured, key, its, lever), []).append(key)
    unreached = _gather_unreached(measured, runs) if lever is CLOCK else None
    own = next(level for level, its in runs.items() if cell.id in {each for each, _ in its})
    as_it_is = tuple(runs.pop(own))
    others = {
        level: tuple(its)
        for level, its in runs.items()
        if level is not None and len(its) >= _FEWEST_RUNS
    }
    mean_mhz = fmean(each.sm_clock_mhz for each in measured.readings if each.key in as_it_is)
    levels = Levels(lever, own, as_it_is, others, mean_mhz, unreached)
    if len(as_it_is) < _FEWEST_RUNS or len(levels.every) < _FEWEST_LEVELS:
        listed = ", ".join(f"{each:.0f} {lever.unit}" for each in levels.every) or "none"
        return (
            f"{_FEWEST_LEVELS} levels of the {lever.name}, the same for all GPUs, with "
            f"{counted(_FEWEST_RUNS, 'run')} each are needed; those with so many runs: {listed}"
        )
    return levels


def _but_limits(cell: Cell, lever: Lever) -> Cell:
    return dataclasses.replace(lever.set_on(cell, ()), id="")


def _level(measured: Measured, key: Key, cell: Cell, lever: Lever) -> float | None:
    """The limit that all GPUs of a run had, or None where it is not known."""
    limits: set[float | None] = {float(limit) for limit in lever.of(cell)}
    if not limits and lever is POWER:
        limits = {each.power_limit_w for each in measured.readings if each.key == key}
    return limits.pop() if len(limits) == 1 else None


def _gather_unreached(measured: Measured, runs: dict[float | None, list[Key]]) -> int | None:
    """Make one level of all locks that are above the clocks that GPUs have without them, and of no
    lock: the highest of these clocks. Returns the highest such lock, or None where there is none.
    """
    top = runs[None] if None in runs else runs[max(each for each in runs if each is not None)]
    clocks: dict[tuple[str, int], list[float]] = {}
    for each in measured.readings:
        if each.key in top:
            clocks.setdefault((each.node, each.gpu), []).append(each.sm_clock_mhz)
    reached = max(fmean(its) for its in clocks.values())
    locks = [each for each in runs if each is not None and each >= reached]
    if not locks:
        return None
    runs[reached] = sorted(key for each in (*locks, None) for key in runs.pop(each, []))
    return int(max(locks))
