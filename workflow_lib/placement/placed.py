"""``placement.json``: a placement, what it should gain, and the GPUs that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workflow_lib.intervals.differences import Interval
from workflow_lib.placement.advice import Advice
from workflow_lib.placement.effects import Place
from workflow_lib.placement.readings import name


@dataclass(frozen=True)
class PlacementRecord:
    """What was advised, as it is written down before it is tried."""

    cell: str
    #: the id of the cell as placed, on these GPUs
    placed_cell: str
    recommended: bool
    gpu_order: tuple[int, ...]
    #: of each of the pipeline's ranks
    stage_layers: tuple[int, ...]
    #: shares of a step's time, and of its GPUs' energy; 90 % intervals
    time_gain: Interval
    energy_gain: Interval
    #: of the warmest GPU's mean, °C
    temperature_change_c: Interval
    #: of the readings: which runs, and when they began
    sweep: str
    runs: int
    first_unix_s: float
    last_unix_s: float
    #: "node GPU index" → UUID
    gpus: Mapping[str, str]
    simulated: bool
    #: of each GPU of a node; null where they are as the cell has them
    power_limits_w: tuple[int, ...] | None = None
    clock_limits_mhz: tuple[int, ...] | None = None


def named(uuids: Mapping[Place, str]) -> dict[str, str]:
    """Places as text, as JSON's keys have to be."""
    return {name(place): uuid for place, uuid in sorted(uuids.items())}


def record(advice: Advice, placed_cell: str, sweep: str) -> PlacementRecord:
    """An advice as it is written down."""
    placed = advice.placed
    limits = placed.limits
    asked = {} if limits is None else {limits.lever.key: limits.values}
    return PlacementRecord(
        cell=advice.cell.id,
        placed_cell=placed_cell,
        recommended=advice.is_worth_a_try,
        gpu_order=placed.order,
        stage_layers=placed.layers,
        time_gain=placed.time_gain,
        energy_gain=placed.energy_gain,
        temperature_change_c=placed.temperature_change_c,
        sweep=sweep,
        runs=advice.runs,
        first_unix_s=advice.first_unix_s,
        last_unix_s=advice.last_unix_s,
        gpus=named(advice.uuids),
        simulated=advice.simulated,
        power_limits_w=asked.get("power_limits_w"),
        clock_limits_mhz=asked.get("clock_limits_mhz"),
    )
