"""Step times of planned cells whose GPU this workflow's runs cover."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workflow_lib.projection.layouts import own_layout
from workflow_lib.projection.machines import hardware_machine
from workflow_lib.projection.own_stack import own_stack
from workflow_lib.records import Cell


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: the median, and an interval that should hold 90 % of runs."""

    median_s: float
    low_s: float
    high_s: float


def step_time(cell: Cell) -> StepTime | None:
    """The step time of a cell that pre-trains in bf16. None for other cells, and if no run on its
    GPU was fitted. None as well with context parallelism or a zero-bubble schedule, because no
    fitted run of this workflow has these.

    Raises RecordError if the fitted runs cannot be read.
    """
    if cell.training.workload != "pretrain" or cell.training.precision != "bf16":
        return None
    if cell.degrees.cp > 1 or cell.degrees.schedule != "1f1b":
        return None
    machine = hardware_machine(cell.hardware)
    if isinstance(machine, str):
        return None
    stack = own_stack()
    layout = own_layout(cell.model, cell.degrees, cell.training, machine)
    (found,) = stack.predict([layout], cell.hardware.platform)
    if "stack" in found.unseen:
        return None
    reach = math.exp(stack.widths.factors[0.9] * found.sd)
    return StepTime(found.median_s, found.median_s / reach, found.median_s * reach)
