"""The axes that distinguish cells, as columns of tables and in words.

All of them derive from the declarations of :class:`~workflow_lib.records.cell.Cell` and its parts.
A row here is a row of any table that begins with the columns of :data:`IDENTITY`.
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
    """A field of a cell or of one of its parts."""

    #: the attribute of Cell that holds the field; "" if it is a field of Cell itself
    part: str
    field: axes.Field

    @cached_property
    def name(self) -> str:
        """The name of its column."""
        return self.field.axis.column or self.field.name

    @property
    def role(self) -> Role:
        """Its role: see axes.Role."""
        return self.field.axis.role

    @property
    def column(self) -> Column:
        """Its column in tables."""
        axis = self.field.axis
        return Column(self.name, self.field.type, axis.unit, axis.description)

    def of(self, cell: Any) -> Any:
        """A cell's value of the field, as tables hold it. Anything else that has the part of a cell
        that holds it may take the place of a cell."""
        return self.stored(
            getattr(getattr(cell, self.part) if self.part else cell, self.field.name)
        )

    def stored(self, value: Any) -> Any:
        """A value of the field as tables hold it."""
        if not self.field.is_nested:
            return value
        plain = dict(value) if isinstance(value, Mapping) else list(value)
        return json.dumps(plain, sort_keys=True, ensure_ascii=False) if plain else None

    def word(self, row: Row) -> str:
        """The word for a row's value in the cell's name; "" if the value has none."""
        value = row[self.name]
        return self.field.axis.word(json.loads(value or "[]") if self.field.is_nested else value)

    def in_words(self, row: Row) -> str:
        """A row's value as pages show it: "seed 1", "bf16", "compile" or "no compile"; "no
        cool-down" for the 0 that older cells have by default; "" if the axis has no meaning for the
        cell, or is a detail of what it has not."""
        axis, value = self.field.axis, row[self.name]
        if axis.only_with and row[axis.only_with[0]] != axis.only_with[1]:
            return ""
        if value is None and axis.detail_of and not row[axis.detail_of]:
            return ""
        label = axis.label or self.name.replace("_", " ")
        if value is None or isinstance(value, bool) or value == self.field.default == 0:
            return label if value else f"no {label}"
        if axis.says_itself:
            return str(value)
        number = f"{value:g}" if isinstance(value, float) else f"{value}"
        return f"{label} {number} {axis.unit}".rstrip()


def _axes() -> Iterator[CellAxis]:
    hints = typing.get_type_hints(Cell)
    parts = [
        cell_field.name
        for cell_field in dataclasses.fields(Cell)
        if dataclasses.is_dataclass(hints[cell_field.name])
    ]
    # Readers look for the training options first.
    for part in sorted(
        parts, key=("degrees", "training", "model", "data", "telemetry", "hardware").index
    ):
        yield from (CellAxis(part, field) for field in axes.fields(hints[part]))
    yield from (CellAxis("", field) for field in axes.fields(Cell))


#: column → axis, for every field of a cell but its id
ALL_AXES: Mapping[str, CellAxis] = {axis.name: axis for axis in _axes()}
#: the axes that distinguish cells
AXES: Mapping[str, CellAxis] = {
    name: axis for name, axis in ALL_AXES.items() if axis.role != "analysis"
}
#: the format of cell.json, in its key ``format``: that of the newest field
CELL_FORMAT = max(axis.field.axis.since for axis in ALL_AXES.values())
_FIRST = ("platform", "model")

#: the columns that identify a cell, in every table
IDENTITY: tuple[Column, ...] = (
    *columns(("cell", str, "", "the cell's id: its directory under results/cells")),
    *(AXES[name].column for name in _FIRST),
    *columns(
        ("parallelism", str, "", "short name of the layout"),
        ("options", str, "", "short name of the training options"),
    ),
    *(axis.column for name, axis in AXES.items() if name not in _FIRST),
    *columns(("gpus", int, "", "GPUs (ranks)")),
    # It labels cells and does not tell them apart: a platform may state it later.
    ALL_AXES["emulated"].column,
)


def identity(cell: Cell) -> dict[str, Any]:
    """The IDENTITY columns of a cell."""
    known = {
        "cell": cell.id,
        "parallelism": cell.degrees.name,
        "options": cell.training.name,
        "gpus": cell.degrees.world_size,
        "emulated": cell.emulated,
        **{name: axis.of(cell) for name, axis in AXES.items()},
    }
    return {column.name: known[column.name] for column in IDENTITY}


def emulated_in_words(rows: Iterable[Row]) -> str:
    """What is emulated on the platforms of rows, a sentence for each; "" if nothing is."""
    emulated: dict[str, str] = {}
    for row in rows:
        if row["emulated"]:
            emulated.setdefault(row["platform"], row["emulated"])
    return " ".join(
        f"The nodes or links of {platform} are emulated: {words}."
        for platform, words in emulated.items()
    )


def of_roles(*roles: Role) -> tuple[str, ...]:
    """The names of the axes that have one of these roles."""
    return tuple(name for name, axis in AXES.items() if axis.role in roles)


def varied_by(figure: str) -> tuple[str, ...]:
    """The names of the axes in which cells differ that one figure of this kind compares."""
    return tuple(name for name, axis in AXES.items() if figure in axis.field.axis.varied_by)


def key(row: Row, free: Collection[str] = ()) -> tuple[Any, ...]:
    """A row's values of all axes but ``free``. Rows with equal keys differ only in ``free``."""
    return tuple(row[name] for name in AXES if name not in free)


def alike(rows: Iterable[Row], free: Collection[str] = ()) -> list[list[Row]]:
    """Groups of rows that differ only in the axes ``free``. Groups and their rows keep the order of
    ``rows``."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row, free), []).append(row)
    return list(groups.values())


def differing(rows: Sequence[Row], without: Collection[str] = ()) -> list[str]:
    """The axes, except ``without``, in which the rows differ. An axis that is a detail of another
    is left out if the other already tells the rows apart."""

    def tells_more(name: str) -> bool:
        whole = AXES[name].field.axis.detail_of
        has_whole = whole and whole not in without
        values = {(row[whole] if has_whole else None, row[name]) for row in rows}
        return len(values) > len({value for value, _ in values})

    return [name for name in AXES if name not in without and tells_more(name)]


def differences(rows: Sequence[Row], without: Collection[str] = ()) -> list[list[str]]:
    """For each row, the values in which the rows differ, in words: "seed 1", "NCCL_ALGO Ring"."""
    by_row: list[list[str]] = [[] for _ in rows]
    for name in differing(rows, without):
        if name != "software":
            for words, row in zip(by_row, rows, strict=True):
                words += filter(None, [AXES[name].in_words(row)])
            continue
        values = [json.loads(row[name] or "{}") for row in rows]
        for variable in sorted({variable for of_row in values for variable in of_row}):
            if len({of_row.get(variable) for of_row in values}) > 1:
                short = variable.removeprefix("environment.")
                for words, of_row in zip(by_row, values, strict=True):
                    there = variable in of_row
                    words.append(f"{short} {of_row[variable]}" if there else f"no {short}")
    return by_row
