"""GPUs under limits: how fast they are, and how much power they save.

With s(u) and q(u) of :mod:`workflow_lib.placement.curves`, a GPU at a limit u has

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
import numpy.typing as npt

from workflow_lib.placement import curves
from workflow_lib.placement.curves import Curves
from workflow_lib.placement.effects import Place
from workflow_lib.placement.levels import CLOCK, Levels
from workflow_lib.placement.predictions import Held, Limits
from workflow_lib.placement.readings import order_of
from workflow_lib.placement.search import Search

Floats = npt.NDArray[np.float64]

#: of what limits save by the curves: published predictions of power were off by 1 % of it
#: (arXiv 2511.09861), which is a tenth of what is saved where this is a tenth of the power
_OF_SAVED = 0.9, 1.1
#: likewise of locks, which do nothing above the clocks with which GPUs compute; and these are known
#: less well, because clocks are means over all time, and those of GPUs that wait are higher
_OF_LOCKED = 0.4, 1.2
_SEED = 22
_HALVINGS = 40
_STEPS = 200
#: of the mean clock over all time: lower locks hold GPUs back while they compute
_HELD = 0.97


class Answers:
    """What the GPUs of a search do under limits of one lever."""

    def __init__(self, search: Search, levels: Levels, drawn: Curves) -> None:
        self.search, self.levels = search, levels
        self.curves = _of_passes(drawn, search.share_of_gain)
        ends = _OF_LOCKED if levels.lever is CLOCK else _OF_SAVED
        generator = np.random.default_rng(_SEED)
        self.of_saved = generator.uniform(*ends, len(search.share_of_gain))
        self.of_saved[0] = np.mean(ends)
        #: of each GPU without lower limits
        self.free_mhz: dict[Place, float] = {}
        self.lock: tuple[Floats, Floats] | None = None
        if levels.lever is CLOCK:
            mean_mhz = self._free_mhz()
            for place, values in search.clocks.items():
                self.free_mhz[place] = mean_mhz * math.exp(float(values[0]))
            self.lock = self._lock()

    def held(self, limits: tuple[int, ...]) -> Held:
        """The GPUs under limits, in each draw."""
        logs, saved, warmth_c = {}, {}, {}
        of_limits = {limit: self.logs(limit) for limit in set(limits)}
        for place in self.search.places:
            limit = limits[place[1]]
            logs[place] = of_limits[limit][place]
            level = self._level(place, limit)
            of_power = 1 - np.exp(self.curves.at(self.curves.log_power, level))
            saved[place] = self.of_saved * of_power
            warmth_c[place] = self.curves.at(self.curves.warmth_c, level)
        return Held(Limits(self.levels.lever, limits), logs, saved, warmth_c)

    def _level(self, place: Place, limit: int) -> float:
        """The level at which all GPUs together save as much of their power as one does at a limit.

        A power limit is the same to all. A locked clock takes more from a GPU that has a higher
        clock without it.
        """
        level = self.levels.level(limit)
        if self.lock is None or self.levels.own is None or level >= self.levels.own:
            return level
        levels = np.linspace(self.levels.every[0], self.levels.own, _STEPS)
        lowered = {each: np.minimum(levels / clock, 1) for each, clock in self.free_mhz.items()}
        mean = np.mean(np.log([*lowered.values()]), axis=0)
        own = min(math.log(level / self.free_mhz[place]), 0.0)
        return float(np.interp(own, mean, levels))

    def _free_mhz(self) -> float:
        """The mean clock with which GPUs compute where no lock holds them back.

        The clock over all time is higher, as a GPU that waits has a higher one. So the line through
        the power at the two highest locks that surely hold GPUs back is followed to where nothing
        is saved.
        """
        mean_mhz = self.levels.mean_clock_mhz
        holding = [at for at, level in enumerate(self.curves.levels) if level < _HELD * mean_mhz]
        if len(holding) < 2:
            return mean_mhz
        (low, low_power), (high, high_power) = (
            (math.log(self.curves.levels[at]), float(self.curves.log_power[0, at]))
            for at in holding[-2:]
        )
        if high_power <= low_power:
            return mean_mhz
        steepness = (high_power - low_power) / (high - low)
        return min(mean_mhz, math.exp(high - high_power / steepness))

    def logs(self, limit: int) -> Mapping[Place, Floats]:
        """Logarithm of each GPU's speed at a limit, in each draw."""
        own, level = self.search.logs, self.levels.level(limit)
        is_above = self.levels.own is not None and level > self.levels.own
        if self.lock is None or is_above:
            log_speed = self.curves.at(self.curves.log_speed, level)
            return {place: values + log_speed for place, values in own.items()}
        locks, log_speeds = self.lock
        locked = curves.between(locks, log_speeds, level)
        found = {}
        for place, values in own.items():
            free_mhz = self.free_mhz[place]
            slower = locked - curves.between(locks, log_speeds, free_mhz)
            found[place] = values + np.minimum(slower, 0) if level < free_mhz else values
        return found

    def _lock(self) -> tuple[Floats, Floats]:
        """Locks, (locks), and the logarithm of the speed of a GPU whose clock is locked to each,
        (draws, locks): that with which the cell's step is as long as was measured. The last is the
        clock of the fastest GPU, with the speed that this has.
        """
        search = self.search
        order, layers = order_of(search.cell), search.pipeline.layers(search.cell.degrees)
        speeds = search.pipeline.speeds([order], search.nodes, search.logs)[0]
        work = search.work(layers)
        step = search.pipeline.step(work / speeds)
        fastest = np.max([*search.logs.values()], axis=0)
        found = []
        for log_speed in self.curves.log_speed.T:
            wanted = step / np.exp(log_speed)
            low = speeds.min(axis=-1) * np.exp(np.minimum(log_speed, 0))
            high = np.exp(fastest)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                locked = work / np.minimum(speeds, middle[:, None])
                is_too_slow = search.pipeline.step(locked) > wanted
                low, high = np.where(is_too_slow, middle, low), np.where(is_too_slow, high, middle)
            found.append(np.where(log_speed < 0, np.log(high), fastest))
        highest = max(self.free_mhz.values())
        binding = int(np.searchsorted(self.curves.levels, highest))
        locks = np.append(self.curves.levels[:binding], highest)
        return locks, np.stack([*found[:binding], fastest], axis=-1)


def _of_passes(drawn: Curves, share: Floats) -> Curves:
    """Speeds at which passes take as much longer as makes steps as long as measured: only a share
    of a change of passes comes about in steps.
    """
    longer = (np.exp(-drawn.log_speed) - 1) / share[:, None]
    return dataclasses.replace(drawn, log_speed=-np.log1p(longer))
