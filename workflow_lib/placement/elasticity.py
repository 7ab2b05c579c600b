"""How much of the clocks' effects comes true: the elasticity of speed over the clock.

A GPU with a clock 1 % lower computes 1 % slower only if nothing else holds it up, such as its
memory. The share e of the clocks' effects that comes true is between 0 and 1. Runs of one cell in
several orders of its GPUs tell it. A step takes longer with a slow GPU in a stage of much work, and
a little longer with it in an early one or a late one, and e says by how much
(:mod:`workflow_lib.placement.stages`)::

    log(step) = level + predicted(order, e) + drift with time + error

Cells with other divisions of layers count, too, each division with a level of its own. Predictions
need GPUs' effects and the head's work, of which each draw has its own. So each draw takes an e at
random, as likely as the measured steps are with it. Before any step, all from 0 to 1 are equally
likely. Errors are those of runs, by their spread within orders, and of the formula.

Where orders hardly change steps, as with stages of equal work, little is learnt. Orders of a
division in which one stage has a few layers more tell e well: there a step is as long as that
stage, and so follows the clock of its GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from workflow_lib.placement.effects import Floats
from workflow_lib.placement.readings import Measured, without_order
from workflow_lib.records.cell import Cell

#: of a step, standard deviation: in orders of one division, steps that were added up from single
#: passes were 0.02 to 0.08 % from the formula
_OF_FORMULA = 0.001
#: e that are looked at; steps are predicted for a few and follow lines between them
_POINTS = np.linspace(0, 1, 101)
_PREDICTED = np.linspace(0, 1, 6)


def drawn(
    measured: Measured,
    cell: Cell,
    log_steps: Callable[[Sequence[Cell], float], Floats],
    generator: np.random.Generator,
    draws: int,
) -> Floats:
    """e in each draw, (draws); the first draw has the mean.

    ``log_steps`` predicts the logarithms of cells' steps, (draws, cells), of an e.
    """
    weights = np.ones((draws, len(_POINTS)))
    runs = [run for run in measured.runs if _but_division(run.cell) == _but_division(cell)]
    cells = list({run.cell.id: run.cell for run in runs}.values())
    free = len(runs) - len(cells) - 1
    if free > 0:
        which = np.array([[float(run.cell.id == cell.id) for cell in cells] for run in runs])
        started = np.array([run.started_unix_s for run in runs])
        drift = (started - started.mean()) / (np.ptp(started) or 1.0)
        design = np.column_stack([which, drift])
        steps = np.log([run.step_time_s for run in runs])
        inverse = np.linalg.pinv(design)
        parameters = inverse @ steps
        square = float(np.square(steps - design @ parameters).sum())
        variance = square / generator.chisquare(free, draws)
        variance[0] = square / free
        of_means = (inverse @ inverse.T)[:-1, :-1]
        errors = variance[:, None, None] * of_means + _OF_FORMULA**2 * np.eye(len(cells))
        divisions = [cell.degrees.stage_layers for cell in cells]
        of_division = dict.fromkeys(divisions)
        levels = np.array(
            [[float(division == one) for one in of_division] for division in divisions]
        )
        predicted = np.stack([log_steps(cells, float(e)) for e in _PREDICTED], axis=1)
        squares = _squares(parameters[:-1] - _between(predicted), errors, levels)
        weights = np.exp((squares.min(axis=1, keepdims=True) - squares) / 2)
    return _at_random(weights, generator.random(draws))


def _but_division(cell: Cell) -> Cell:
    """What runs with other orders of GPUs, and other divisions of layers, have in common."""
    degrees = dataclasses.replace(cell.degrees, stage_layers=())
    return without_order(dataclasses.replace(cell, degrees=degrees))


def _between(predicted: Floats) -> Floats:
    """Of all points, (draws, points, cells), from those that were predicted."""
    place = _POINTS * (len(_PREDICTED) - 1)
    lower = np.minimum(place.astype(int), len(_PREDICTED) - 2)
    way = (place - lower)[:, None]
    return np.asarray((1 - way) * predicted[:, lower] + way * predicted[:, lower + 1])


def _squares(left: Floats, errors: Floats, levels: Floats) -> Floats:
    """What is left of steps in squares of its error, (draws, points), with the best levels."""
    inverse = np.linalg.inv(errors)
    of_levels = inverse @ levels
    inner = np.linalg.inv(levels.T @ of_levels)
    inverse = inverse - of_levels @ inner @ of_levels.swapaxes(1, 2)
    return np.asarray(((left @ inverse) * left).sum(axis=-1))


def _at_random(weights: Floats, uniform: Floats) -> Floats:
    """A point of each draw, as likely as its weights, (draws, points), say."""
    parts = (weights[:, 1:] + weights[:, :-1]) / 2
    sums = parts.cumsum(axis=1)
    wanted = uniform * sums[:, -1]
    number = np.minimum((sums < wanted[:, None]).sum(axis=1), parts.shape[1] - 1)
    rows = np.arange(len(weights))
    part = parts[rows, number]
    way = np.clip(1 - (sums[rows, number] - wanted) / np.where(part > 0, part, 1), 0, 1)
    points = _POINTS[number] + way * (_POINTS[1] - _POINTS[0])
    points[0] = np.average(_POINTS, weights=weights[0])
    return np.asarray(points)
