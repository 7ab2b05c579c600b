"""GPUs and slots by what was measured: a row a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from workflow_lib.intervals.differences import Interval
from workflow_lib.placement.effects import Apart, Effects, Place, apart, as_share, check, fit
from workflow_lib.placement.readings import Measured
from workflow_lib.records.reading import RecordError
from workflow_lib.records.reasons import Reason, missing

#: a GPU is named where its clock is surely more than this below the mean of all
BEHIND = 0.02


@dataclass(frozen=True)
class Characterisation:
    """What a sweep says of its GPUs."""

    #: of each GPU, from the mean over those that ran with it: logarithms; temperatures in °C
    clocks: Mapping[Place, Interval]
    power: Mapping[Place, Interval]
    temperatures: Mapping[Place, Interval]
    apart: Apart
    #: by the nodes that ran together
    of_nodes: Mapping[tuple[str, ...], tuple[Effects, Effects]]
    #: nodes of which nothing can be said → why
    left_out: Mapping[tuple[str, ...], str]
    #: in the order of nodes and indices; see SLOTS
    rows: list[dict[str, Any]]
    #: the share by which the clocks of GPUs that are behind are below
    threshold: float

    @property
    def behind(self) -> list[dict[str, Any]]:
        """The rows of GPUs that surely fall behind."""
        return [row for row in self.rows if row["behind"]]


def characterise(measured: Measured, threshold: float = BEHIND) -> Characterisation:
    """Tell GPUs apart, on each set of nodes that ran together.

    Raises RecordError where the runs do not allow it on any.
    """
    clocks: dict[Place, Interval] = {}
    power: dict[Place, Interval] = {}
    temperatures: dict[Place, Interval] = {}
    of_nodes, left_out = {}, {}
    error = None
    for nodes, group in measured.of_nodes().items():
        try:
            own = fit(group, measured.clock)
            warmth = fit(group, lambda reading: reading.temperature_c, logarithms=False)
            watts = fit(group, lambda reading: reading.power_w)
        except RecordError as problem:
            left_out[nodes], error = str(problem), problem
            continue
        of_nodes[nodes] = own, warmth
        clocks |= own.gpus
        power |= watts.gpus
        temperatures |= warmth.gpus
    if not of_nodes:
        check(measured)
        raise error or RecordError(f"{measured.sweep} has no readings of GPUs")
    parts = apart(clocks)
    rows = []
    for place in sorted(clocks):
        row, reasons = _row(measured, place)
        row["behind"] = as_share(clocks[place]).high < -threshold
        row |= _ends("clock", clocks[place]) | _ends("power", power[place])
        row |= _ends("temperature", temperatures[place], "_c")
        row |= _told_apart("slot", parts.slots.get(place[1]), parts.why_not, reasons)
        row |= _told_apart("silicon", parts.silicon.get(place), parts.why_not, reasons)
        row |= missing(reasons) if reasons else {"missing_reasons": None, "missing_codes": None}
        rows.append(row)
    return Characterisation(clocks, power, temperatures, parts, of_nodes, left_out, rows, threshold)


def _row(measured: Measured, place: Place) -> tuple[dict[str, Any], dict[str, Reason]]:
    """A GPU's own readings, and why values are missing."""
    mine = [reading for reading in measured.readings if (reading.node, reading.gpu) == place]
    inlets = [reading.inlet_c for reading in mine if reading.inlet_c is not None]
    temperature_c = fmean(reading.temperature_c for reading in mine)
    known = len(inlets) == len(mine)
    row = {
        "node": place[0],
        "gpu": place[1],
        "gpu_uuid": mine[0].uuid,
        "runs": len(mine),
        "at_power_cap": measured.at_cap,
        "sm_clock_mean_mhz": fmean(reading.sm_clock_mhz for reading in mine),
        "power_mean_w": fmean(reading.power_w for reading in mine),
        "temperature_mean_c": temperature_c,
        "above_inlet_c": temperature_c - fmean(inlets) if known else None,
    }
    return row, {} if known else {"above_inlet_c": Reason("no_inlet_sensor")}


def _ends(name: str, effect: Interval, unit: str = "") -> dict[str, float]:
    return {
        f"{name}_effect{unit}": effect.estimate,
        f"{name}_effect_low{unit}": effect.low,
        f"{name}_effect_high{unit}": effect.high,
    }


def _told_apart(
    name: str, effect: Interval | None, why_not: str, reasons: dict[str, Reason]
) -> Mapping[str, float | None]:
    if effect is not None:
        return _ends(name, effect)
    names = (f"{name}_effect", f"{name}_effect_low", f"{name}_effect_high")
    reasons |= dict.fromkeys(names, Reason("not_told_apart", why=why_not))
    return dict.fromkeys(names)
