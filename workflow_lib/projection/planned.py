"""Planned cells of this workflow: step times, and what one does against another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workflow_lib.feasibility import StepTime
from workflow_lib.intervals.differences import Interval
from workflow_lib.projection.gpu_power import GpuPower, gpu_power, levels
from workflow_lib.projection.kinds import Widths
from workflow_lib.projection.layouts import Layout, is_like_fitted, own_layout
from workflow_lib.projection.machines import hardware_machine
from workflow_lib.projection.own_stack import shipped_stack
from workflow_lib.records import cell_axes
from workflow_lib.records.cell import Cell

#: how probably an interval should hold a run
COVERAGE = 0.9
#: of projected seconds: far finer than an interval's width, and far from the digits in which
#: processors differ
_DIGITS = 6
#: measures of which two cells are contrasted
_OF_ENERGY = ("energy_per_token_j", "tokens_per_j", "samples_per_s_per_mj")
CONTRASTED = (
    *("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu"),
    *_OF_ENERGY,
)


def step_time(cell: Cell) -> StepTime | None:
    """Of a cell with a :func:`layout`; None where it has none, and where no run on its GPU was
    fitted.

    Raises RecordError if the fitted runs cannot be read.
    """
    of_cell = layout(cell)
    if of_cell is None:
        return None
    stack = shipped_stack()
    (time,) = stack.predict([of_cell], cell.hardware.platform)
    if "stack" in time.unseen:
        return None
    widths = stack.widths_of(of_cell, time)
    low, high = widths.interval(time.median_s, time.sd, COVERAGE)
    median_s, low_s, high_s = (float(f"{s:.{_DIGITS}g}") for s in (time.median_s, low, high))
    return StepTime(median_s, low_s, high_s, "projected", widths.kind)


def layout(cell: Cell) -> Layout | None:
    """Of a cell with what all fitted runs have; None of any other, and where too little is known
    of its GPU."""
    if not is_like_fitted(cell_axes.identity(cell)):
        return None
    machine = hardware_machine(cell.hardware)
    if isinstance(machine, str):
        return None
    return own_layout(cell.model, cell.degrees, cell.training, machine)


@dataclass(frozen=True)
class Projected:
    """A cell, with what is projected of it."""

    cell: Cell
    layout: Layout
    step_time_s: float
    widths: Widths
    power: GpuPower

    def value(self, measure: str) -> float:
        """The median of a measure of :data:`CONTRASTED`."""
        rate = self.layout.tokens / self.step_time_s
        joules = self.power.power_w * self.layout.gpus / rate
        return {
            "step_time_s": self.step_time_s,
            "tokens_per_s": rate,
            "tokens_per_s_per_gpu": rate / self.layout.gpus,
            "energy_per_token_j": joules,
            "tokens_per_j": 1 / joules,
            # A step's samples a second over its energy in MJ.
            "samples_per_s_per_mj": 1e6
            * rate
            / (self.layout.tokens * joules * self.cell.model.sequence_length),
        }[measure]


def projected(cell: Cell) -> Projected | None:
    """What is projected of a cell; None where it has no :func:`layout`, and where neither a run of
    this workflow nor a published one was on its GPU.

    Raises RecordError where the fitted runs cannot be read.
    """
    of_cell = layout(cell)
    stack = shipped_stack()
    if of_cell is None or of_cell.machine.gpu not in stack.gpus:
        return None
    (time,) = stack.predict([of_cell], cell.hardware.platform)
    power = gpu_power(of_cell, time, levels(stack.runs, of_cell.machine.gpu))
    return Projected(cell, of_cell, time.median_s, stack.widths_of(of_cell, time), power)


def ratio(measure: str, one: Projected, other: Projected) -> Interval:
    """A measure of :data:`CONTRASTED` of one cell over that of another, with a 90 % interval.

    What is not known of times counts once where it bears on both alike. What is not known of power
    counts as if the two had nothing to do with each other. Either of the two may be the slower one:
    the interval reaches as far in both directions.
    """
    stack = shipped_stack()
    rows = [stack.row(side.layout, side.cell.hardware.platform) for side in (one, other)]
    _, variance = stack.fit.contrast(*rows)
    if measure == "samples_per_s_per_mj":
        # Time counts twice in it.
        variance *= 4
    if measure in _OF_ENERGY:
        variance += sum((side.power.sd_w / side.power.power_w) ** 2 for side in (one, other))
    estimate = one.value(measure) / other.value(measure)
    reach = math.exp(Widths.log_reach((one.widths, other.widths), variance, COVERAGE))
    return Interval(estimate, estimate / reach, estimate * reach)
