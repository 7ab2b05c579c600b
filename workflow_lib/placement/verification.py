"""A prediction beside the runs that tried it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from workflow_lib.intervals.differences import FEWEST_RUNS, Interval, apart, in_blocks
from workflow_lib.placement.levels import LEVERS, Lever
from workflow_lib.placement.placed import PlacementRecord
from workflow_lib.placement.readings import Measured, Run, order_of, without_order
from workflow_lib.placement.stages import Pipeline
from workflow_lib.records import Cell, RecordError

HOLDS, WRONG, UNDECIDED = "holds", "wrong", "undecided"


@dataclass(frozen=True)
class Verified:
    """One measure, predicted and measured; gains as shares."""

    measure: str
    predicted: Interval
    measured: Interval

    @property
    def verdict(self) -> str:
        """wrong where the intervals have nothing in common; holds where what was measured lies in
        what was predicted.
        """
        predicted, measured = self.predicted, self.measured
        if predicted.low > measured.high or predicted.high < measured.low:
            return WRONG
        within = predicted.low <= measured.estimate <= predicted.high
        return HOLDS if within else UNDECIDED


def verify(placement: PlacementRecord, measured: Measured) -> list[Verified]:
    """Compare runs of the cell as it was and as placed: block by block if these began one after
    the other, else side by side, with an interval that allows for a drift.

    Raises RecordError where these ran on other GPUs than the placement rests on, or where there are
    too few runs.
    """
    placement.check_gpus(measured.uuids)
    before = {run.run: run for run in measured.runs_of(placement.cell)}
    after = {run.run: run for run in measured.runs if _is_placed(run, placement, before)}
    known = placement.cell, placement.placed_cell
    found = [Verified("time", placement.time_gain, _gain(before, after, _step_time_s, *known))]
    sides = _with_energy(before), _with_energy(after)
    if min(map(len, sides)) >= FEWEST_RUNS:
        energy = _gain(sides[0], sides[1], _step_energy_j, *known)
        found.append(Verified("energy", placement.energy_gain, energy))
    return found


def _with_energy(runs: Mapping[int, Run]) -> dict[int, Run]:
    return {number: run for number, run in runs.items() if run.step_energy_j is not None}


def _step_time_s(run: Run) -> float:
    return run.step_time_s


def _step_energy_j(run: Run) -> float:
    return math.nan if run.step_energy_j is None else run.step_energy_j


def _is_placed(run: Run, placement: PlacementRecord, before: Mapping[int, Run]) -> bool:
    """Whether a run's cell is the one that was placed, with its order, layers and limits."""
    cell = run.cell
    levers = [lever for lever in LEVERS if getattr(placement, lever.key) is not None]
    plain = _but_placement(cell, levers)
    return (
        any(_but_placement(each.cell, levers) == plain for each in before.values())
        and all(lever.of(cell) == getattr(placement, lever.key) for lever in levers)
        and order_of(cell) == placement.gpu_order
        and Pipeline(cell).layers(cell.degrees) == placement.stage_layers
    )


def _but_placement(cell: Cell, levers: Sequence[Lever]) -> Cell:
    plain = without_order(cell)
    for lever in levers:
        plain = lever.set_on(plain, ())
    return replace(plain, degrees=replace(plain.degrees, stage_layers=()))


def _gain(
    before: Mapping[int, Run],
    after: Mapping[int, Run],
    value: Callable[[Run], float],
    cell: str,
    placed_cell: str,
) -> Interval:
    """1 less the ratio of after to before, with its 95 % interval."""
    if min(len(before), len(after)) < FEWEST_RUNS:
        raise RecordError(
            f"{len(before)} runs of {cell} and {len(after)} of {placed_cell} are completed, "
            f"expected {FEWEST_RUNS} or more of each"
        )
    logs = [[math.log(value(side[number])) for number in sorted(side)] for side in (after, before)]
    if _in_blocks(before, after):
        found = in_blocks(*logs)
    else:
        began = sorted(run.started_unix_s for side in (after, before) for run in side.values())
        places = [
            [float(began.index(side[number].started_unix_s)) for number in sorted(side)]
            for side in (after, before)
        ]
        found = apart(*logs, *places)
    return Interval(1 - math.exp(found.estimate), 1 - math.exp(found.high), 1 - math.exp(found.low))


def _in_blocks(before: Mapping[int, Run], after: Mapping[int, Run]) -> bool:
    """Whether each run has a partner of its number, and such pairs began one after the other."""
    if before.keys() != after.keys():
        return False
    spans = [
        sorted((before[number].started_unix_s, after[number].started_unix_s))
        for number in sorted(before)
    ]
    return all(earlier[1] < later[0] for earlier, later in pairwise(spans))
