"""What tells one cell from another: the axes of cells, as columns of tables and in words.

All of it derives from what :mod:`workflow_lib.records.cell` declares. Rows are those of any table
that begins with :data:`IDENTITY`.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workflow_lib.records import axes
from workflow_lib.records.axes import Role
from workflow_lib.records.cell import Cell
from workflow_lib.records.columns import Column, columns

Row = Mapping[str, Any]


@dataclass(frozen=True)
class CellAxis:
    """A field of a cell, of itself or of one of its parts."""

    #: the attribute of Cell that holds it; "" where it is the cell's own
    part: str
    field: axes.Field

    @cached_property
    def name(self) -> str:
        """Its column."""
        return self.field.axis.column or self.field.name

    @property
    def role(self) -> Role:
        """What it does."""
        return self.field.axis.role

    @property
    def column(self) -> Column:
        """It as a column of a table."""
        axis = self.field.axis
        return Column(self.name, self.field.type, axis.unit, axis.description)

    def of(self, cell: Cell) -> Any:
        """A cell's value, as tables hold it."""
        return self.stored(
            getattr(getattr(cell, self.part) if self.part else cell, self.field.name)
        )

    def stored(self, value: Any) -> Any:
        """A value of the field as tables hold it."""
        if not self.field.is_nested:
            return value
        plain = dict(value) if isinstance(value, Mapping) else list(value)
        return json.dumps(plain, sort_keys=True, ensure_ascii=False) if plain else None

    def _decoded(self, row: Row) -> Any:
        value = row[self.name]
        return json.loads(value or "[]") if self.field.is_nested else value

    def word(self, row: Row) -> str:
        """The word that stands for a row's value in the cell's name; "" where none does."""
        return self.field.axis.word(self._decoded(row))

    def in_words(self, row: Row) -> str:
        """A row's value as people say it: "seed 1", "bf16", "compile" or "no compile"; "" where it
        means nothing.
        """
        axis, value = self.field.axis, row[self.name]
        if axis.only_with and row[axis.only_with[0]] != axis.only_with[1]:
            return ""
        label = axis.label or self.name.replace("_", " ")
        if value is None or isinstance(value, bool):
            return label if value else f"no {label}"
        if axis.says_itself:
            return str(value)
        number = f"{value:g}" if isinstance(value, float) else f"{value}"
        return f"{label} {number} {axis.unit}".rstrip()


def _axes() -> Iterator[CellAxis]:
    hints = typing.get_type_hints(Cell)
    parts = [
        each.name for each in dataclasses.fields(Cell) if dataclasses.is_dataclass(hints[each.name])
    ]
    # How a cell trains is what one looks for first.
    for part in sorted(
        parts, key=("degrees", "training", "model", "data", "telemetry", "hardware").index
    ):
        yield from (CellAxis(part, field) for field in axes.fields(hints[part]))
    yield from (CellAxis("", field) for field in axes.fields(Cell))


#: every field of a cell but its id, by its column
ALL_AXES: Mapping[str, CellAxis] = {axis.name: axis for axis in _axes()}
#: those that tell cells apart
AXES: Mapping[str, CellAxis] = {
    name: axis for name, axis in ALL_AXES.items() if axis.role != "analysis"
}
#: the format of cell.json, in its key ``format``: that of the newest field
CELL_FORMAT = max(axis.field.axis.since for axis in ALL_AXES.values())
_FIRST = ("platform", "model")

#: what tells one cell from another, in every table
IDENTITY: tuple[Column, ...] = (
    *columns(("cell", str, "", "the cell's id: its directory under results/cells")),
    *(AXES[name].column for name in _FIRST),
    *columns(
        ("parallelism", str, "", "short name of the layout"),
        ("options", str, "", "short name of the training options"),
    ),
    *(axis.column for name, axis in AXES.items() if name not in _FIRST),
    *columns(("gpus", int, "", "GPUs (ranks)")),
)


def identity(cell: Cell) -> dict[str, Any]:
    """The IDENTITY columns of a cell."""
    known = {
        "cell": cell.id,
        "parallelism": cell.degrees.name,
        "options": cell.training.name,
        "gpus": cell.degrees.world_size,
        **{name: axis.of(cell) for name, axis in AXES.items()},
    }
    return {column.name: known[column.name] for column in IDENTITY}


def of_roles(*roles: Role) -> tuple[str, ...]:
    """The names of the axes that have one of these roles."""
    return tuple(name for name, axis in AXES.items() if axis.role in roles)


def varied_by(figure: str) -> tuple[str, ...]:
    """The names of the axes in which the cells of a kind of figure differ."""
    return tuple(name for name, axis in AXES.items() if figure in axis.field.axis.varied_by)


def key(row: Row, free: Collection[str] = ()) -> tuple[Any, ...]:
    """A row's values of all axes but ``free``: rows with one key differ in ``free`` alone."""
    return tuple(row[name] for name in AXES if name not in free)


def alike(rows: Iterable[Row], free: Collection[str] = ()) -> list[list[Row]]:
    """Groups of rows that differ in the axes ``free`` alone, each group and all as they come."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row, free), []).append(row)
    return list(groups.values())


def differing(rows: Sequence[Row], without: Collection[str] = ()) -> list[str]:
    """The axes, but for some, of which rows have different values."""
    return [
        name
        for name in AXES
        if name not in without and any(row[name] != rows[0][name] for row in rows)
    ]


def differences(rows: Sequence[Row], without: Collection[str] = ()) -> list[list[str]]:
    """What tells each of some rows from the others, in words: "seed 1", "NCCL_ALGO Ring"."""
    told: list[list[str]] = [[] for _ in rows]
    for name in differing(rows, without):
        if name != "software":
            for words, row in zip(told, rows, strict=True):
                words += filter(None, [AXES[name].in_words(row)])
            continue
        values = [json.loads(row[name] or "{}") for row in rows]
        for variable in sorted({variable for of_row in values for variable in of_row}):
            if len({of_row.get(variable) for of_row in values}) > 1:
                short = variable.removeprefix("environment.")
                for words, of_row in zip(told, values, strict=True):
                    there = variable in of_row
                    words.append(f"{short} {of_row[variable]}" if there else f"no {short}")
    return told
