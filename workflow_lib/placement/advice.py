"""Whether to place a pipeline's work by its GPUs.

A placement is recommended only if the lower end of the 90 % interval of its gain is above 0.5 %. It
rests on the GPUs that were measured, and is meant for no others. Limits of GPUs are looked for with
the placement that is recommended, or else with the cell as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workflow_lib.intervals.differences import Interval
from workflow_lib.placement import limits
from workflow_lib.placement.effects import Place, check
from workflow_lib.placement.limits import LimitAdvice
from workflow_lib.placement.readings import Measured, order_of
from workflow_lib.placement.search import Move, Prediction, Search, interval
from workflow_lib.placement.stages import Order, Pipeline
from workflow_lib.records.cell import Cell
from workflow_lib.records.reading import RecordError

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
    #: how much of the clocks' differences comes true in steps
    share: Interval
    #: of power or clocks; null where the sweep has too few levels of them
    limits: LimitAdvice | None
    #: why levers that were tried were left out
    limits_left_out: Sequence[str]
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
        return (self.best.order, self.best.layers) == _as_it_is(self.cell)

    @property
    def limits_recommended(self) -> bool:
        """Whether limits of power or clocks are surely worth it."""
        return self.limits is not None and self.limits.is_recommended

    @property
    def placed(self) -> Prediction:
        """What is to be tried: the placement, and the limits if these are recommended."""
        if self.limits is not None and self.limits.is_recommended:
            return self.limits.whole
        return self.best

    @property
    def is_worth_a_try(self) -> bool:
        """Whether anything is recommended."""
        return self.is_recommended or self.limits_recommended


def advise(everything: Measured, cell_id: str, nodes: Sequence[str] = ()) -> Advice:
    """Look for a better placement of a cell that a sweep measured, on the nodes that it ran on.

    Raises RecordError where the cell has no completed run there, or ran on several sets of nodes of
    which none is chosen, or where GPUs cannot be told apart.
    """
    of_nodes = _of_nodes(everything, cell_id, nodes)
    check(of_nodes)
    runs = of_nodes.runs_of(cell_id)
    measured = of_nodes.with_limits_of(runs[0].cell)
    search = Search(measured, runs[0].cell)
    started = [run.started_unix_s for run in measured.runs]
    pipeline, degrees = search.pipeline, search.cell.degrees
    own, given = _as_it_is(search.cell)
    by_work = None
    if pipeline.layers_can_move:
        divided = pipeline.divided(np.ones(degrees.pp))
        by_work = search.prediction(own, tuple(int(count) for count in divided))
    best = search.prediction(*search.best())
    base = (best.order, best.layers) if best.time_gain.low > WORTH else (own, given)
    limit_advice, left_out = limits.advise(of_nodes, search, *base)
    return Advice(
        cell=search.cell,
        best=best,
        by_work=by_work,
        move=search.move(own, given) if pipeline.layers_can_move else None,
        share=interval(search.share),
        limits=limit_advice,
        limits_left_out=left_out,
        step_time_s=float(np.median([run.step_time_s for run in runs])),
        runs=len({reading.key for reading in measured.readings}),
        uuids=measured.uuids,
        first_unix_s=min(started),
        last_unix_s=max(started),
        simulated=any(run.simulated for run in measured.runs),
    )


def _as_it_is(cell: Cell) -> tuple[Order, tuple[int, ...]]:
    return order_of(cell), Pipeline(cell).layers(cell.degrees)


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
