"""Runs of one cell at several limits of its GPUs: what a sweep measured of a power limit, or of a
locked clock.

A level is a limit that all GPUs of a run had. A cell that sets limits says it. One that sets none
has the power limit that its runs recorded as in force. What its clocks may be is not recorded; they
are as under a lock that no GPU reaches. Such locks are one level, at the highest clock of a GPU.

:class:`Curves` is how the cell answers to a limit u that all of its GPUs have, by runs at levels::

    log s(u) = log step(as it is) − log step(u)
    log q(u) = log power(u) − log power(as it is)      of a GPU, the mean over all
    θ(u)     = temperature(u) − temperature(as it is)  likewise, °C

Between measured levels each follows a straight line over log u; beyond them nothing is said. Draws
resample runs. Three runs of one level say little of their spread, so the deviations from the
levels' means are drawn from those of all levels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from workflow_lib.placement.effects import Floats
from workflow_lib.placement.readings import Measured
from workflow_lib.records.cell import Cell
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


def find_levels(measured: Measured, cell: Cell, lever: Lever) -> Levels | str | None:
    """The levels that a sweep measured of a cell; why they are too few, or cannot be used; or None
    where no run tried the lever."""
    plain = _but_limits(cell, lever)
    of_cells = {
        run.cell.id: run.cell for run in measured.runs if _but_limits(run.cell, lever) == plain
    }
    if {lever.of(cell) for cell in of_cells.values()} <= {lever.of(cell)}:
        return None
    if len(set(lever.of(cell))) > 1:
        return f"the cell's own {lever.name}s differ between GPUs"
    runs: dict[float | None, list[Key]] = {}
    for key in sorted({reading.key for reading in measured.readings if reading.cell in of_cells}):
        its = of_cells[key[0]]
        if its.id == cell.id or len(set(lever.of(its))) < 2:
            runs.setdefault(_level(measured, key, its, lever), []).append(key)
    unreached = _gather_unreached(measured, runs) if lever is CLOCK else None
    own = next(level for level, its in runs.items() if cell.id in {of_cell for of_cell, _ in its})
    as_it_is = tuple(runs.pop(own))
    others = {
        level: tuple(its)
        for level, its in runs.items()
        if level is not None and len(its) >= _FEWEST_RUNS
    }
    mean_mhz = fmean(
        reading.sm_clock_mhz for reading in measured.readings if reading.key in as_it_is
    )
    levels = Levels(lever, own, as_it_is, others, mean_mhz, unreached)
    if len(as_it_is) < _FEWEST_RUNS or len(levels.every) < _FEWEST_LEVELS:
        listed = ", ".join(f"{level:.0f} {lever.unit}" for level in levels.every) or "none"
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
        limits = {reading.power_limit_w for reading in measured.readings if reading.key == key}
    return limits.pop() if len(limits) == 1 else None


def _gather_unreached(measured: Measured, runs: dict[float | None, list[Key]]) -> int | None:
    """Make one level of all locks that are above the clocks that GPUs have without them, and of no
    lock: the highest of these clocks. Returns the highest such lock, or None where there is none.
    """
    top = runs[None] if None in runs else runs[max(run for run in runs if run is not None)]
    clocks: dict[tuple[str, int], list[float]] = {}
    for reading in measured.readings:
        if reading.key in top:
            clocks.setdefault((reading.node, reading.gpu), []).append(reading.sm_clock_mhz)
    reached = max(fmean(its) for its in clocks.values())
    locks = [run for run in runs if run is not None and run >= reached]
    if not locks:
        return None
    runs[reached] = sorted(key for lock in (*locks, None) for key in runs.pop(lock, []))
    return int(max(locks))


_SEED = 21


@dataclass(frozen=True)
class Curves:
    """The answer at each level, in each draw; the first draw is the estimate."""

    #: W or MHz, (levels), the lowest first
    levels: Floats
    #: all (draws, levels)
    log_speed: Floats
    log_power: Floats
    warmth_c: Floats

    def at(self, values: Floats, limit: float) -> Floats:
        """One of the curves at a limit, (draws), by lines over the logarithm. Raises ValueError
        beyond the measured levels."""
        if not self.levels[0] <= limit <= self.levels[-1]:
            raise ValueError(f"{limit} is not between {self.levels[0]} and {self.levels[-1]}")
        count = len(self.levels)
        at = float(np.interp(math.log(limit), np.log(self.levels), np.arange(count)))
        lower = min(int(at), count - 2)
        way = at - lower
        return np.asarray((1 - way) * values[:, lower] + way * values[:, lower + 1])


def draw_curves(measured: Measured, levels: Levels, draws: int) -> Curves:
    """The curves of a cell's runs at several levels."""
    generator = np.random.default_rng(_SEED)
    sides = [
        _of_runs(measured, levels.others.get(level, levels.as_it_is)) for level in levels.every
    ]
    base = levels.every.index(levels.own) if levels.own is not None else len(sides)
    if levels.own is None:
        sides.append(_of_runs(measured, levels.as_it_is))
    # Deviations from a mean over R runs are too small by √((R − 1) / R).
    deviations = np.concatenate(
        [(side - side.mean(axis=0)) * math.sqrt(len(side) / (len(side) - 1)) for side in sides]
    )
    means = []
    for side in sides:
        chosen = generator.integers(len(deviations), size=(draws, len(side)))
        chosen_means = deviations[chosen].mean(axis=1)
        chosen_means[0] = 0
        means.append(side.mean(axis=0) + chosen_means)
    relative = np.stack(means, axis=1) - means[base][:, None]
    relative = relative[:, : len(levels.every)]
    return Curves(np.array(levels.every), -relative[..., 0], relative[..., 1], relative[..., 2])


def _of_runs(measured: Measured, keys: Sequence[Key]) -> Floats:
    """Of each run, log step, log power and °C: (runs, 3)."""
    steps = {run.key: run.step_time_s for run in measured.runs}
    values = []
    for key in keys:
        mine = [reading for reading in measured.readings if reading.key == key]
        power_w = np.mean([reading.power_w for reading in mine])
        warmth_c = np.mean([reading.temperature_c for reading in mine])
        values.append((math.log(steps[key]), math.log(power_w), float(warmth_c)))
    return np.array(values)
