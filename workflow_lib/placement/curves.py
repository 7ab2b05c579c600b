"""How a cell answers to a limit that all of its GPUs have: its speed, power and temperature.

Each run at a level is compared with the runs of the cell as it is::

    log s(u) = log step(as it is) − log step(u)
    log q(u) = log power(u) − log power(as it is)      of a GPU, the mean over all
    θ(u)     = temperature(u) − temperature(as it is)  likewise, °C

Between measured levels each follows a straight line over log u; beyond them nothing is said. A
power of u, as clocks are of power, is such a line.

Draws resample runs. Three runs of one level say little of their spread, so the deviations from the
levels' means are drawn from those of all levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workflow_lib.placement.levels import Key, Levels
from workflow_lib.placement.readings import Measured

Floats = npt.NDArray[np.float64]

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


def drawn(measured: Measured, levels: Levels, draws: int, seed: int = _SEED) -> Curves:
    """The curves of a cell's runs at several levels."""
    generator = np.random.default_rng(seed)
    sides = [_of_runs(measured, levels.others.get(each, levels.as_it_is)) for each in levels.every]
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
    found = []
    for key in keys:
        mine = [each for each in measured.readings if each.key == key]
        power_w = np.mean([each.power_w for each in mine])
        warmth_c = np.mean([each.temperature_c for each in mine])
        found.append((math.log(steps[key]), math.log(power_w), float(warmth_c)))
    return np.array(found)
