"""What a placement, and limits of GPUs with it, should change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workflow_lib.intervals.differences import Interval
from workflow_lib.placement.effects import LEVEL, Place
from workflow_lib.placement.levels import Lever
from workflow_lib.placement.stages import Order

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """What a placement should change, each with a 90 % interval."""

    order: Order
    #: of each of the pipeline's ranks; as the cell has them where they cannot move
    layers: tuple[int, ...]
    #: 1 less the ratio of step times; likewise of the GPUs' energy
    time_gain: Interval
    energy_gain: Interval
    #: of the warmest GPU's mean, °C
    temperature_change_c: Interval
    #: of each GPU of a node; None where they are as the cell has them
    limits: Limits | None = None


@dataclass(frozen=True)
class Limits:
    """A limit for each GPU of a node, by its index."""

    lever: Lever
    values: tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """GPUs under limits, in each draw."""

    limits: Limits
    #: logarithm of each GPU's speed
    logs: Mapping[Place, Floats]
    #: what share of a GPU's power is saved, and by how many °C it changes
    saved: Mapping[Place, Floats]
    warmth_c: Mapping[Place, Floats]


@dataclass(frozen=True)
class Change:
    """What one placement changes against another, (draws)."""

    time_gain: Floats
    energy_gain: Floats
    warmest_c: Floats

    def then(self, other: Change) -> Change:
        """This change, and another after it."""
        return Change(
            1 - (1 - self.time_gain) * (1 - other.time_gain),
            1 - (1 - self.energy_gain) * (1 - other.energy_gain),
            self.warmest_c + other.warmest_c,
        )


@dataclass(frozen=True)
class Move:
    """The one layer that is nearest to paying, with the order as it is."""

    from_stage: int
    to_stage: int
    #: how much faster the other stage's GPUs have to be for that: 1 + P / L between equal stages
    needed_ratio: float
    #: how much faster they are
    ratio: Interval


def interval(draws: Floats) -> Interval:
    """The first draw, which is the estimate, and the ends of what holds 90 % of all."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(draws[0]), float(min(low, draws[0])), float(max(high, draws[0])))
