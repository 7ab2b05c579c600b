"""Whether to place a pipeline's work by its GPUs.

A placement is recommended only if the lower end of the 90 % interval of its gain is above 0.5 %. It
rests on the GPUs that were measured, and is meant for no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workflow_lib.placement.effects import Place, check
from workflow_lib.placement.readings import Measured, order_of
from workflow_lib.placement.search import Move, Prediction, Search
from workflow_lib.placement.stages import Pipeline
from workflow_lib.records import Cell, RecordError

#: of time, at the lower end of the interval
WORTH = 0.005


@dataclass(frozen=True)
class Advice:
    """What was found for a cell."""

    cell: Cell
    best: Prediction
    #: layers divided by work alone, as if GPUs were equal; null where they cannot move
    by_work: Prediction | None
    move: Move | None
    #: medians over the runs of the cell as it is
    step_time_s: float
    runs: int
    uuids: dict[Place, str]
    first_unix_s: float
    last_unix_s: float
    simulated: bool

    @property
    def is_recommended(self) -> bool:
        """Whether the gain is surely worth it."""
        return self.best.time_gain.low > WORTH

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing better was found than the cell as it is."""
        given = Pipeline(self.cell).layers(self.cell.degrees)
        return (self.best.order, self.best.layers) == (order_of(self.cell), given)


def advise(everything: Measured, cell_id: str, nodes: Sequence[str] = ()) -> Advice:
    """Look for a better placement of a cell that a sweep measured, on the nodes that it ran on.

    Raises RecordError where the cell has no completed run there, or ran on several sets of nodes of
    which none is chosen, or where GPUs cannot be told apart.
    """
    measured = _of_nodes(everything, cell_id, nodes)
    check(measured)
    runs = measured.runs_of(cell_id)
    search = Search(measured, runs[0].cell)
    started = [run.started_unix_s for run in measured.runs]
    pipeline, degrees = search.pipeline, search.cell.degrees
    own = order_of(search.cell)
    given = pipeline.layers(degrees)
    by_work = None
    if pipeline.layers_can_move:
        divided = pipeline.divided(np.ones(degrees.pp))
        by_work = search.prediction(own, tuple(int(each) for each in divided))
    return Advice(
        cell=search.cell,
        best=search.prediction(*search.best()),
        by_work=by_work,
        move=search.move(own, given) if pipeline.layers_can_move else None,
        step_time_s=float(np.median([run.step_time_s for run in runs])),
        runs=len({each.key for each in measured.readings}),
        uuids=measured.uuids,
        first_unix_s=min(started),
        last_unix_s=max(started),
        simulated=any(run.simulated for run in measured.runs),
    )


def _of_nodes(measured: Measured, cell_id: str, nodes: Sequence[str]) -> Measured:
    if not measured.runs_of(cell_id):
        known = ", ".join(sorted({run.cell.id for run in measured.runs})) or "none"
        raise RecordError(
            f"{measured.sweep} has no completed run of {cell_id}; those with runs: {known}"
        )
    if not measured.readings:
        check(measured)
    groups = {its: group for its, group in measured.of_nodes().items() if group.runs_of(cell_id)}
    if nodes:
        groups = {its: group for its, group in groups.items() if its == tuple(sorted(nodes))}
    if len(groups) == 1:
        return next(iter(groups.values()))
    ran = "; ".join(
        ",".join(its) for its, group in measured.of_nodes().items() if group.runs_of(cell_id)
    )
    raise RecordError(
        f"{cell_id} has readings on these nodes: {ran or 'none'}; choose one set of them, as in "
        "--nodes a,b"
    )
