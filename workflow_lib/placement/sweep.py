"""The sweep that tries a placement: the cell as it is, and as placed, in turns.

Runs are submitted in blocks of one run of each cell, every second block in reversed order
(:mod:`workflow_lib.order`), so that a steady drift cancels from their difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from workflow_lib.cells import PlannedCell, expand_study
from workflow_lib.config import ONLY_WITH, MatrixEntry, SweepSpec, TrainingAxes
from workflow_lib.intervals.differences import Interval
from workflow_lib.placement.advice import Advice
from workflow_lib.placement.effects import Place
from workflow_lib.placement.readings import place_name
from workflow_lib.records.cell import Cell
from workflow_lib.records.degrees import DEGREES
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import whole_file
from workflow_lib.study import Files, Study, lookup


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
    return {place_name(place): uuid for place, uuid in sorted(uuids.items())}


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


#: of each cell: two pairs of blocks
REPEATS = 4


def write(plain: Mapping[str, Any], path: Path) -> None:
    """Write a sweep's file. Raises RecordError where another sweep is there."""
    text = _HEADER + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise RecordError(f"{path} is another sweep: remove it, or give another --write")
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


_HEADER = "# yaml-language-server: $schema=../schemas/sweep.json\n"


def described(study: Study, advice: Advice) -> dict[str, Any]:
    """The file of a sweep of a cell and of its placement, as plain data. The placement names the
    GPUs that it is for, and has what it should gain.

    Raises RecordError where no sweep of the study has the cell.
    """
    cell, placed = advice.cell, advice.placed
    spec, entry = _entry_of(study, cell)
    plain = spec.model_dump(mode="json", exclude_unset=True, exclude={"matrix", "exclude"})
    plain["description"] = f"A placement of {cell.model.name} by its GPUs, beside what it was"
    plain["platforms"] = [cell.hardware.platform]
    plain["repeats"] = REPEATS
    given = entry.model_dump(mode="json", exclude_unset=True)
    for name in TrainingAxes.model_fields:
        # Of an axis the cell has one value.
        for options in (plain["training"], given):
            if isinstance(options.get(name), list):
                options[name] = getattr(cell.training, name)
            other, value = ONLY_WITH.get(name, ("workload", cell.training.workload))
            if getattr(cell.training, other) != value:
                options.pop(name, None)
    own = given | {"models": cell.model.name, "gpus": cell.degrees.world_size}
    own |= {name: getattr(cell.degrees, name) for name in DEGREES}
    for name in ("platforms", "nodes", "stage_layers", "gpu_order", "gpu_uuids"):
        own.pop(name, None)
    even = replace(cell.degrees, stage_layers=()).layers_of_stages(cell.model.layers)
    as_it_is = own | _lists(cell.degrees.stage_layers, cell.degrees.gpu_order)
    layers = () if placed.layers == even else placed.layers
    if cell.degrees.virtual_stages > 1:
        layers = cell.degrees.stage_layers
    lists = _lists(layers, placed.order)
    uuids = [uuid for _, uuid in sorted(advice.uuids.items())]
    limits = {}
    if placed.limits is not None:
        limits = {placed.limits.lever.key: list(placed.limits.values)}
    predicted = {
        "against": cell.id,
        "time_gain": _numbers(placed.time_gain),
        "energy_gain": _numbers(placed.energy_gain),
    }
    named = {"gpu_uuids": uuids, "predicted": predicted}
    plain["matrix"] = [as_it_is, own | lists | limits | named]
    return plain


def _numbers(gain: Interval) -> list[float]:
    """As a sweep's file has them: to a hundredth of a percent."""
    return [round(value, 4) for value in (gain.estimate, gain.low, gain.high)]


def placed_cell(study: Study, cell: Cell, plain: Mapping[str, Any]) -> PlannedCell:
    """The cell as placed, in a sweep that :func:`described` described. Raises RecordError where the
    sweep has not the cell as it was."""
    spec = SweepSpec.model_validate(plain)
    view = lookup("sweep", "placed", expand_study(replace(study, sweeps=Files({"placed": spec}))))
    ids = [planned.cell.id for planned in view.cells]
    if cell.id not in ids:
        raise RecordError(f"the sweep that was made for {cell.id} has other cells: {ids}")
    return next(planned for planned in view.cells if planned.cell.id != cell.id)


def _lists(layers: tuple[int, ...], order: tuple[int, ...]) -> dict[str, list[int]]:
    lists = {"stage_layers": list(layers)} if layers else {}
    if order and order != tuple(range(len(order))):
        lists["gpu_order"] = list(order)
    return lists


def _entry_of(study: Study, cell: Cell) -> tuple[SweepSpec, MatrixEntry]:
    """The sweep, and the entry of its matrix, that has the cell."""
    for name, spec in study.sweeps.items():
        if cell.hardware.platform not in study.platforms_of(spec):
            continue
        for entry in spec.matrix:
            alone = replace(
                study, sweeps=Files({name: spec.model_copy(update={"matrix": (entry,)})})
            )
            views = expand_study(alone).values()
            if any(planned.cell.id == cell.id for view in views for planned in view.cells):
                return spec, entry
    raise RecordError(
        f"no sweep of the configuration has {cell.id}: give the --config that it was measured with"
        + "".join(f"\nleft out: {mistake}" for mistake in study.mistakes)
    )
