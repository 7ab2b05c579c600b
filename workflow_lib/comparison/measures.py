"""The measures that are compared, and their values."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_lib.records.measures import MEASURES, Contrast, Measure
from workflow_lib.records.reasons import Reason
from workflow_lib.report.figures.cell_names import Row

#: half a degree, because GPUs give their temperature in whole degrees
READING_ERROR_C = 0.5

#: measures of power that are not of the energy of the measured steps
_MOMENTARY = ("power_peak_w", "power_instant_peak_w", "idle_power_w")

RATIO, DIFFERENCE = "ratio", "difference"

#: the measures that two sweeps are contrasted by, in the order of the page
COMPARED: tuple[Measure, ...] = tuple(measure for measure in MEASURES.values() if measure.contrast)


def contrast(measure: Measure) -> Contrast:
    """How a measure of :data:`COMPARED` is contrasted. Raises ValueError for other measures."""
    if measure.contrast is None:
        raise ValueError(f"{measure.name} is not compared")
    return measure.contrast


def is_ratio(measure: Measure) -> bool:
    """Whether a measure is contrasted by a ratio; otherwise by a difference."""
    return contrast(measure).kind == RATIO


def is_temperature(measure: Measure) -> bool:
    """Whether a measure is a temperature, which GPUs give in whole degrees."""
    return measure.sensor == "temperature"


def is_of_energy(measure: Measure) -> bool:
    """Whether a measure is of energy, or of power over all measured steps."""
    return bool(measure.gain) and measure.name not in _MOMENTARY


def reading_error_c(measure: Measure) -> float:
    """By how much the whole degrees of GPUs may make a temperature wrong; a spread has two GPUs."""
    return READING_ERROR_C * (2 if measure.name == "temperature_spread_c" else 1)


def difference_unit(measure: Measure) -> str:
    """The unit of a difference; that of shares in % is percentage points."""
    return "percentage points" if "%" in measure.people_unit else measure.people_unit


def values(measure: Measure, runs: Sequence[Row]) -> tuple[list[float], str]:
    """The values of completed runs, in the stored unit, and ""; or none, and why, if a run lacks
    one.

    A contrast over only some of the runs would hide that the others lack the measure.
    """
    whole = [float(run[measure.name]) for run in runs if run[measure.name] is not None]
    if len(whole) == len(runs):
        return whole, ""
    run = next(run for run in runs if run[measure.name] is None)
    return [], f"run {run['run']}: {Reason.of_column(run, measure.name)}"
