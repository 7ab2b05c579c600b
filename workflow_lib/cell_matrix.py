"""Multiplies out the matrix of a sweep's file: the points of its entries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from workflow_lib.config import (
    Exclusion,
    MatrixEntry,
    SweepSpec,
    TrainingAxes,
    option_of,
    values,
)
from workflow_lib.records import bounds
from workflow_lib.records.cell import Cell
from workflow_lib.records.cell_axes import AXES
from workflow_lib.records.degrees import DEGREES
from workflow_lib.study import ConfigError

LIMITS = ("power_limits_w", "clock_limits_mhz")
#: what all cells of an entry have alike
OF_ENTRY = ("nodes", "gpu_order", "gpu_uuids", *LIMITS, "cool_down")


def refuse_too_many(spec: SweepSpec, platform_name: str) -> None:
    """Raise ConfigError if the entries make more cells than allowed, before they are made."""
    points = sum(
        math.prod(map(len, _axes(spec, entry).values()))
        for entry in spec.matrix
        if entry.platforms is None or platform_name in values(entry.platforms)
    )
    if points > bounds.CELLS.most:
        raise ConfigError(
            f"it makes {points} cells on {platform_name}, more than "
            f"{bounds.CELLS.most}; shorten the lists of its matrix"
        )


def _axes(spec: SweepSpec, entry: MatrixEntry) -> dict[str, tuple[Any, ...]]:
    """Axis → its values, for each axis of an entry."""
    axes = {
        "model": values(entry.models),
        "data": spec.data_of(entry),
        "gpus": values(entry.gpus),
    }
    # A list of numbers is one value; a list of words is an axis.
    divided = values(entry.stage_layers)
    axes["stage_layers"] = divided if isinstance(divided[0], str) else (divided,)
    axes |= {degree: values(getattr(entry, degree)) for degree in DEGREES}
    for option in TrainingAxes.model_fields:
        axes[option] = values(option_of(entry, spec.training, option))
    return axes


def points(spec: SweepSpec, entry: MatrixEntry) -> Iterator[dict[str, Any]]:
    """The product of an entry's axes: for each point a dictionary of axis → value."""
    axes = _axes(spec, entry)
    for point in itertools.product(*axes.values()):
        yield {
            **dict(zip(axes, point, strict=True)),
            **{name: getattr(entry, name) for name in OF_ENTRY},
        }


def is_excluded(cell: Cell, exclusion: Exclusion) -> bool:
    """Whether an exclusion matches the cell."""
    for name, wanted in exclusion:
        if wanted is None:
            continue
        axis = AXES[name]
        # A list means any of its values, unless the axis's value is a list itself.
        any_of = [axis.stored(wanted)] if axis.field.is_nested else values(wanted)
        if axis.of(cell) not in any_of:
            return False
    return True
