"""GPUs under limits: how fast they are, and how much power they save.

With s(u) and q(u) of :mod:`workflow_lib.placement.levels`, a GPU at a limit u has

- its own speed times s(u) under a power limit. A locked clock makes a GPU slower only below the
  clock that it has without it, and is the same clock for a fast GPU and for a slow one;
- its own power, by its share of the step for which it computes, times q(u). A lock takes more from
  a GPU that has a higher clock without it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from workflow_lib.placement.effects import Floats, Place
from workflow_lib.placement.levels import CLOCK, Curves, Levels
from workflow_lib.placement.readings import order_of
from workflow_lib.placement.search import GpusAtLimits, Limits, Search

#: of what limits save by the curves: published predictions of power were off by 1 % of it
#: (arXiv 2511.09861), which is a tenth of what is saved where this is a tenth of the power
_OF_SAVED = 0.9, 1.1
#: likewise of locks, of which less is known: power does not follow a line over the clock, and the
#: curves are means over GPUs that are lowered by different amounts
_OF_LOCKED = 0.65, 1.25
_SEED = 22
_HALVINGS = 40
#: of the mean clock over all time: lower locks hold GPUs back while they compute
_HELD = 0.97
#: how steep power is over the clock above the locks that were measured, of how it is between them.
#: It bends upwards, and a line through two levels has the error of both
_STEEPER = 0.97, 1.1


class Answers:
    """What the GPUs of a search do under limits of one lever."""

    def __init__(self, search: Search, levels: Levels, drawn: Curves) -> None:
        self.search, self.levels = search, levels
        self.curves = _of_passes(drawn, search.share_of_gain)
        ends = _OF_LOCKED if levels.lever is CLOCK else _OF_SAVED
        generator = np.random.default_rng(_SEED)
        self.of_saved = generator.uniform(*ends, len(search.share_of_gain))
        self.of_saved[0] = np.mean(ends)
        #: of each GPU without lower limits, (draws)
        self.free_mhz: dict[Place, Floats] = {}
        self.lock: tuple[Floats, Floats] | None = None
        if levels.lever is CLOCK:
            steeper = generator.uniform(*_STEEPER, len(search.share_of_gain))
            steeper[0] = np.mean(_STEEPER)
            mean_mhz = self._free_mhz(steeper)
            for place, values in search.clocks.items():
                self.free_mhz[place] = mean_mhz * np.exp(values)
            self.lock = self._lock()

    def at_limits(self, limits: tuple[int, ...]) -> GpusAtLimits:
        """The GPUs under limits, in each draw."""
        logs, saved, warmth_c = {}, {}, {}
        of_limits = {limit: self.logs(limit) for limit in set(limits)}
        for place in self.search.places:
            limit = limits[place[1]]
            logs[place] = of_limits[limit][place]
            of_power = 1 - np.exp(self._less(place, limit, self.curves.log_power))
            saved[place] = self.of_saved * of_power
            warmth_c[place] = self._less(place, limit, self.curves.warmth_c)
        return GpusAtLimits(Limits(self.levels.lever, limits), logs, saved, warmth_c)

    def _less(self, place: Place, limit: int, curve: Floats) -> Floats:
        """One of the curves at a GPU's limit, (draws).

        A power limit is the same to all. A locked clock takes more from a GPU that has a higher
        clock without it, so the curve is read at the level at which all GPUs' clocks are lowered
        as much, in the mean, as this one's is. Between levels it follows lines over that lowering,
        and not over the lock: near the clocks that GPUs have anyway a lock holds back some alone.
        """
        level = self.levels.level(limit)
        if self.lock is None or self.levels.own is None or level >= self.levels.own:
            return self.curves.at(curve, level)
        binding = [lock for lock in self.levels.every if lock < self.levels.own]
        nothing = np.zeros(len(curve))
        lowered = np.column_stack([*map(self._lowered, binding), nothing])
        values = np.column_stack([curve[:, : len(binding)], nothing])
        return _along(lowered, values, np.minimum(np.log(level / self.free_mhz[place]), 0))

    def _lowered(self, level: float) -> Floats:
        """By how much a lock lowers the logarithm of the clock, the mean of all GPUs, (draws)."""
        lowered = [np.minimum(np.log(level / free_mhz), 0) for free_mhz in self.free_mhz.values()]
        return np.asarray(np.mean(lowered, axis=0))

    def _free_mhz(self, steeper: Floats) -> Floats:
        """The mean clock with which GPUs compute where no lock holds them back, (draws).

        The clock over all time is higher, as a GPU that waits has a higher one. So the line through
        the power at the two highest locks that surely hold GPUs back is followed to where nothing
        is saved; the curve above them may be so much steeper.
        """
        mean_mhz = np.full(len(steeper), self.levels.mean_clock_mhz)
        holding = [at for at, level in enumerate(self.curves.levels) if level < _HELD * mean_mhz[0]]
        if len(holding) < 2:
            return mean_mhz
        (low, low_power), (high, high_power) = (
            (math.log(self.curves.levels[at]), self.curves.log_power[:, at]) for at in holding[-2:]
        )
        more = np.maximum(high_power - low_power, 1e-9)
        free_mhz = np.exp(high - high_power * (high - low) / (more * steeper))
        return np.asarray(np.clip(free_mhz, math.exp(high), mean_mhz))

    def logs(self, limit: int) -> Mapping[Place, Floats]:
        """Logarithm of each GPU's speed at a limit, in each draw."""
        own, level = self.search.logs, self.levels.level(limit)
        is_above = self.levels.own is not None and level > self.levels.own
        if self.lock is None or is_above:
            log_speed = self.curves.at(self.curves.log_speed, level)
            return {place: values + log_speed for place, values in own.items()}
        locks, log_speeds = self.lock
        locked = _along(locks, log_speeds, np.full(len(locks), math.log(level)))
        logs = {}
        for place, values in own.items():
            free_mhz = self.free_mhz[place]
            slower = np.minimum(locked - _along(locks, log_speeds, np.log(free_mhz)), 0)
            logs[place] = values + np.where(level < free_mhz, slower, 0)
        return logs

    def _lock(self) -> tuple[Floats, Floats]:
        """Locks, by their logarithm, and that of the speed of a GPU whose clock is locked to each,
        both (draws, locks): that with which the cell's step is as long as was measured. The last is
        the clock of the fastest GPU, with the speed that this has."""
        search = self.search
        order, layers = order_of(search.cell), search.pipeline.layers(search.cell.degrees)
        speeds = search.pipeline.speeds([order], search.nodes, search.logs)[0]
        work = search.work(layers)
        step = search.pipeline.step(work / speeds)
        fastest = np.max([*search.logs.values()], axis=0)
        speed_of_lock = []
        for log_speed in self.curves.log_speed.T:
            wanted = step / np.exp(log_speed)
            low = speeds.min(axis=-1) * np.exp(np.minimum(log_speed, 0))
            high = np.exp(fastest)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                locked = work / np.minimum(speeds, middle[:, None])
                is_too_slow = search.pipeline.step(locked) > wanted
                low, high = np.where(is_too_slow, middle, low), np.where(is_too_slow, high, middle)
            speed_of_lock.append(np.where(log_speed < 0, np.log(high), fastest))
        highest = np.max([*self.free_mhz.values()], axis=0)
        binding = int(np.searchsorted(self.curves.levels, highest[0]))
        below = np.log(self.curves.levels[:binding])
        last = np.maximum(np.log(highest), below.max(initial=-np.inf))
        locks = np.column_stack([np.tile(below, (len(last), 1)), last])
        return locks, np.stack([*speed_of_lock[:binding], fastest], axis=-1)


def _along(grid: Floats, values: Floats, at: Floats) -> Floats:
    """In each draw, a line through values, (draws, points), over a grid of its own, (draws), at one
    point; the first or the last beyond these."""
    rows = np.arange(len(at))
    lower = np.clip((grid <= at[:, None]).sum(axis=1) - 1, 0, grid.shape[1] - 2)
    start, end = grid[rows, lower], grid[rows, lower + 1]
    apart = np.where(end > start, end - start, 1)
    way = np.where(end > start, np.clip((at - start) / apart, 0, 1), 1)
    return np.asarray((1 - way) * values[rows, lower] + way * values[rows, lower + 1])


def _of_passes(drawn: Curves, share: Floats) -> Curves:
    """Speeds at which passes take as much longer as makes steps as long as measured: only a share
    of a change of passes comes about in steps."""
    longer = (np.exp(-drawn.log_speed) - 1) / share[:, None]
    return dataclasses.replace(drawn, log_speed=-np.log1p(longer))
