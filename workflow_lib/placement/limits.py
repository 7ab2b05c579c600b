"""Looks for a limit of each GPU of a node that pays: lower ones for GPUs that wait, and higher ones
for those that others wait for.

A stage whose pass is shorter than the longest waits. Its GPUs can be slower, at a lower power, and
the step takes as long (Perseus, arXiv 2312.06902); so can a GPU that is faster than another of its
stage. Where levels above the cell's own were measured, the watts that this saves can go to the GPUs
that others wait for (Lit Silicon, arXiv 2511.09861).

For each of a few lengths of the longest pass, every GPU gets the lowest limit with which its stage
takes no longer. One list of limits serves all nodes, so an index gets the highest of its needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workflow_lib.placement import levels
from workflow_lib.placement.effects import Floats
from workflow_lib.placement.levels import LEVERS, Levels, draw_curves, find_levels
from workflow_lib.placement.power_at_limit import Answers
from workflow_lib.placement.readings import Measured
from workflow_lib.placement.search import Prediction, Search, interval
from workflow_lib.placement.stages import Order

#: the lower end of one gain has to be above the first, and that of the other above the second
WORTH, MOST_LOST = 0.005, -0.005
#: of the way from a cell's own limits to those of the estimate, in log u; less is surer
_WAYS = 0.25, 0.5, 0.75, 1.0
#: of draws: limits with which a stage takes no longer in so many of them, each stage by itself
_SURE = 0.8, 0.9, 0.95
_LENGTHS = 5
_HALVINGS = 40


@dataclass(frozen=True)
class LimitAdvice:
    """What was found for one lever."""

    levels: Levels
    #: of the limits alone, against the same placement without them; the surest that was found
    alone: Prediction
    #: of the limits and the placement, against the cell as it is
    whole: Prediction
    is_unchanged: bool

    @property
    def is_recommended(self) -> bool:
        """Whether limits surely pay."""
        return not self.is_unchanged and _pays(self.alone)


def advise(
    measured: Measured, search: Search, order: Order, layers: tuple[int, ...]
) -> tuple[LimitAdvice | None, list[str]]:
    """The lever whose limits are the surest to pay with a placement, or None where no lever was
    measured at enough levels; and why levers were left out.

    ``measured`` has the runs at all levels, on the nodes of the search.
    """
    advised, why_not = [], []
    for lever in LEVERS:
        levels = find_levels(measured, search.cell, lever)
        if isinstance(levels, str):
            why_not.append(levels)
        elif levels is not None:
            drawn = draw_curves(measured, levels, len(search.share_of_gain))
            advised.append(Finder(search, levels, drawn, order, layers).best())
    surest = max(
        advised,
        key=lambda of_lever: (of_lever.is_recommended, _surest(of_lever.alone)),
        default=None,
    )
    return surest, why_not


def lowest(grid: Floats, speeds: Floats, needed: float) -> int:
    """Which of the limits, (limits), the lowest first, is the lowest with which a GPU is as fast as
    needed; the highest where none is."""
    enough = np.flatnonzero(speeds >= needed * (1 - 1e-9))
    return int(enough[0]) if len(enough) else len(grid) - 1


class Finder:
    """Limits of one lever for a cell with one placement."""

    def __init__(
        self,
        search: Search,
        levels: Levels,
        drawn: levels.Curves,
        order: Order,
        layers: tuple[int, ...],
    ) -> None:
        self.search, self.levels = search, levels
        self.answers = Answers(search, levels, drawn)
        self.order, self.layers = order, layers
        self.gpus = search.cell.ranks_per_node
        self.grid = _grid(levels)
        own = levels.every[-1] if levels.own is None else levels.own
        #: what each GPU has as it is, as far as it can be asked for
        self.own = max(
            (limit for limit in self.grid if levels.level(limit) <= own), default=self.grid[0]
        )
        logs = [self.answers.logs(limit) for limit in self.grid]
        #: of each GPU, by limit, (limits, draws)
        self.drawn = {place: np.exp([log[place] for log in logs]) for place in search.places}
        #: likewise, the estimate
        self.speeds = {place: values[:, 0] for place, values in self.drawn.items()}
        pipeline = search.pipeline
        as_it_is = {place: values[:1] for place, values in search.logs.items()}
        speeds = pipeline.speeds([order], search.nodes, as_it_is)[0, 0]
        self.work = pipeline.work_of(layers)
        self.longest = float((self.work / speeds).max())

    def best(self) -> LimitAdvice:
        """The surest limits: of those that pay if there are any, the ones with the highest sum of
        both gains' lower ends. The cell's own only if there are no others."""
        given = (self.own,) * self.gpus
        others = [candidate for candidate in dict.fromkeys(self.candidates()) if candidate != given]
        tried = {limits: self.alone(limits) for limits in others or [given]}
        values = max(
            tried, key=lambda limits: (_pays(tried[limits]), round(_surest(tried[limits]), 6))
        )
        return LimitAdvice(
            levels=self.levels,
            alone=tried[values],
            whole=self.search.prediction(self.order, self.layers, self.answers.at_limits(values)),
            is_unchanged=values == given,
        )

    def alone(self, limits: tuple[int, ...]) -> Prediction:
        """What limits change, against the placement without them."""
        gpus = self.answers.at_limits(limits)
        change = self.search.change_by(gpus, self.order, self.layers)
        return Prediction(
            self.order,
            self.layers,
            interval(change.time_gain),
            interval(change.energy_gain),
            interval(change.warmest_c),
            gpus.limits,
        )

    def candidates(self) -> Iterator[tuple[int, ...]]:
        """Limits for a few lengths of the longest pass, and a share of the way to each. Where the
        longest pass cannot be made shorter, also those that are surely low enough."""
        for length in self._lengths():
            for way in _WAYS:
                yield tuple(self._part(limit, way) for limit in self.limits_for(length))
        if self.grid[-1] == self.own:
            for share in _SURE:
                yield self.limits_surely_for(share)

    def limits_for(self, length: float) -> tuple[int, ...]:
        """The lowest limit of each GPU with which no pass is longer."""
        needs = [0] * self.gpus
        for stage, members in enumerate(self.search.pipeline.places(self.search.nodes)):
            needed = float(self.work[stage]) / length
            for node, local in members:
                gpu = self.order[local]
                need = lowest(np.array(self.grid), self.speeds[node, gpu], needed)
                needs[gpu] = max(needs[gpu], need)
        return tuple(self.grid[need] for need in needs)

    def limits_surely_for(self, share: float) -> tuple[int, ...]:
        """The lowest limit of each GPU with which, in this share of draws, its stage takes no
        longer than the longest pass as it is.

        A part of the way to the estimate's limits takes as much from a stage that is surely shorter
        as from one that may be the longest. These limits take more from the first.
        """
        pipeline = self.search.pipeline
        work = self.search.work(self.layers)
        speeds = pipeline.speeds([self.order], self.search.nodes, self.search.logs)[0]
        needed = work / (work / speeds).max(axis=-1, keepdims=True)
        needs = [0] * self.gpus
        for stage, members in enumerate(pipeline.places(self.search.nodes)):
            for node, local in members:
                gpu = self.order[local]
                enough = self.drawn[node, gpu] >= needed[:, stage] * (1 - 1e-9)
                need = lowest(np.array(self.grid), enough.mean(axis=-1), share)
                needs[gpu] = max(needs[gpu], need)
        return tuple(self.grid[need] for need in needs)

    def _lengths(self) -> list[float]:
        """From the longest pass as it is to the shortest for which a node's limits have no larger
        sum; that is the same one where no level above the cell's own was measured."""
        most = self.own * self.gpus
        if self.grid[-1] == self.own:
            return [self.longest]
        highest = {place: speeds[-1:] for place, speeds in self.speeds.items()}
        logs = {place: np.log(speeds) for place, speeds in highest.items()}
        speeds = self.search.pipeline.speeds([self.order], self.search.nodes, logs)[0, 0]
        low, high = float((self.work / speeds).max()), self.longest
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if sum(self.limits_for(middle)) > most:
                low = middle
            else:
                high = middle
        return [float(length) for length in np.linspace(high, self.longest, _LENGTHS)]

    def _part(self, limit: int, way: float) -> int:
        level = self.levels.level
        wanted = math.exp((1 - way) * math.log(level(self.own)) + way * math.log(level(limit)))
        return min(self.grid, key=lambda candidate: abs(level(candidate) - wanted))


def _grid(levels: Levels) -> list[int]:
    """The limits that are looked at: measured levels, and whole steps between them."""
    low, high, step = levels.every[0], levels.every[-1], levels.lever.step
    steps = {step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)}
    measured = {int(level) for level in levels.every if level.is_integer()}
    return sorted(steps | measured | ({levels.unreached} if levels.unreached else set()))


def _surest(alone: Prediction) -> float:
    return alone.time_gain.low + alone.energy_gain.low


def _pays(alone: Prediction) -> bool:
    lows = alone.time_gain.low, alone.energy_gain.low
    return max(lows) > WORTH and min(lows) > MOST_LOST
