"""A prediction beside the runs that tried it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from workflow_lib.intervals.differences import Interval, in_blocks
from workflow_lib.placement.placed import PlacementRecord
from workflow_lib.placement.readings import Measured, Run, order_of
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
    """Compare runs of the cell as it was and as placed, block by block.

    Raises RecordError where these ran on other GPUs than the placement rests on, or where fewer
    than two blocks have both.
    """
    placement.check_gpus(measured.uuids)
    before = {run.run: run for run in measured.runs_of(placement.cell)}
    after = {run.run: run for run in measured.runs if _is_placed(run, placement, before)}
    blocks = sorted(before.keys() & after.keys())
    if len(blocks) < 2:
        raise RecordError(
            f"{measured.sweep} has {len(blocks)} blocks with a completed run of both "
            f"{placement.cell} and {placement.placed_cell}, expected two or more"
        )
    pairs = [(after[block], before[block]) for block in blocks]
    found = [
        Verified(
            "time",
            placement.time_gain,
            _gain([(a.step_time_s, b.step_time_s) for a, b in pairs]),
        )
    ]
    energies = [
        (a.step_energy_j, b.step_energy_j)
        for a, b in pairs
        if a.step_energy_j is not None and b.step_energy_j is not None
    ]
    if len(energies) > 1:
        found.append(Verified("energy", placement.energy_gain, _gain(energies)))
    return found


def _is_placed(run: Run, placement: PlacementRecord, before: Mapping[int, Run]) -> bool:
    """Whether a run's cell is the one that was placed, in that order and with those layers."""
    cell = run.cell
    return (
        any(_but_placement(each.cell) == _but_placement(cell) for each in before.values())
        and order_of(cell) == placement.gpu_order
        and Pipeline(cell).layers(cell.degrees) == placement.stage_layers
    )


def _but_placement(cell: Cell) -> Cell:
    plain = replace(cell.degrees, gpu_order=(), stage_layers=(), gpu_uuids=())
    return replace(cell, id="a/b/c", degrees=plain)


def _gain(pairs: list[tuple[float, float]]) -> Interval:
    """1 less the ratio of after to before, with its 95 % interval over blocks."""
    after, before = zip(*((math.log(a), math.log(b)) for a, b in pairs), strict=True)
    found = in_blocks(after, before)
    return Interval(1 - math.exp(found.estimate), 1 - math.exp(found.high), 1 - math.exp(found.low))
