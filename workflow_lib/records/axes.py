"""Axes: for each field of a cell its description, its role, and how it appears in names.

A field of :class:`~workflow_lib.records.cell.Cell` or of one of its parts is declared once, where
it is defined::

    seed: Annotated[int, Axis("of the initial weights and the order of the data", "work")]

Everything else derives from that declaration: columns of tables, names of directories, labels in
figures, which cells are shown side by side, which compete, and which correspond in two sweeps. The
module needs only the standard library.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: The role of a field. ``work`` says what a cell computes; only cells of the same work are ranked
#: together. ``layout`` and ``option`` say how it computes that; figures search these for the best
#: cell. ``protocol`` says how runs are measured. ``place`` says where they run. An ``analysis``
#: field does not distinguish cells, so a correction of it does not require new runs.
Role = Literal["work", "layout", "option", "protocol", "place", "analysis"]


@dataclass(frozen=True)
class Axis:
    """How tables, names and pages present a field of a cell."""

    description: str
    role: Role
    unit: str = ""
    #: name of the column, if the field's own name is ambiguous
    column: str = ""
    #: label that pages show with the value; if empty, the column's name with blanks
    label: str = ""
    #: whether the value needs no label, as "bf16"
    says_itself: bool = False
    #: column and value of another axis: this axis has a meaning only for cells with that value
    only_with: tuple[str, Any] | None = None
    #: column of an axis that says more: rows that it tells apart are not told apart by this one
    detail_of: str = ""
    #: gives the word for a value in the cell's name; "" if the value has no word
    word: Callable[[Any], str] = lambda value: ""
    #: whether that word is appended to the word before it, without a hyphen
    joins: bool = False
    #: kinds of figures whose cells differ in this axis
    varied_by: tuple[str, ...] = ()
    #: the format of cell.json that introduced the field. A field later than format 1 has a default,
    #: which describes older cells; a field with its default value is left out of a cell's digest
    since: int = 1


@dataclass(frozen=True)
class Field:
    """A field of a record that is an axis."""

    name: str
    #: its type in tables: int, float, bool or str
    type: type
    #: whether it is a tuple or a mapping, which tables hold as JSON text; null if it is empty
    is_nested: bool
    #: the default value; dataclasses.MISSING if there is none
    default: Any
    axis: Axis


@functools.cache
def fields(record: type) -> tuple[Field, ...]:
    """The fields of a record that are axes, in their order."""
    hints = typing.get_type_hints(record, include_extras=True)
    axis_fields = []
    for field in dataclasses.fields(record):
        marks = getattr(hints[field.name], "__metadata__", ())
        for axis in marks:
            if isinstance(axis, Axis):
                plain, is_nested = _stored(typing.get_args(hints[field.name])[0])
                axis_fields.append(Field(field.name, plain, is_nested, field.default, axis))
    return tuple(axis_fields)


def as_before(record: Any) -> frozenset[str]:
    """The names of fields that later formats introduced and that have their default value."""
    return frozenset(
        field.name
        for field in fields(record.__class__)
        if field.axis.since > 1 and getattr(record, field.name) == field.default
    )


def _stored(kind: Any) -> tuple[type, bool]:
    """The type with which a table holds a field of this type, and whether it is JSON text."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _stored(next(argument for argument in arguments if argument is not type(None)))
    if origin is Literal:
        return type(arguments[0]), False
    if origin in (tuple, Mapping):
        return str, True
    return kind, False


def words_of(record: Any) -> dict[str, str]:
    """Each field of a record → the word for its value; "" if the value has none."""
    return {
        field.name: field.axis.word(getattr(record, field.name))
        for field in fields(record.__class__)
    }


def words(record: Any) -> Iterator[str]:
    """The words of a record's name, one for each field that has a word."""
    by_field = words_of(record)
    return joined((field.axis, by_field[field.name]) for field in fields(record.__class__))


def joined(axis_words: Iterable[tuple[Axis, str]]) -> Iterator[str]:
    """The words of axes. A word of an axis that ``joins`` is appended to the one before; empty
    words are left out."""
    word = ""
    for axis, more in axis_words:
        if axis.joins:
            word += more
        elif more:
            if word:
                yield word
            word = more
    if word:
        yield word


def flag(word: str) -> Callable[[bool], str]:
    """Give ``word`` for True, and "" for False."""
    return lambda value: word if value else ""


def beside(word: str) -> Callable[[Any], str]:
    """Give ``word`` followed by the value; "" for 0."""
    return lambda value: f"{word}{value}" if value else ""


def in_runs(before: str = "", behind: str = "") -> Callable[[Sequence[int]], str]:
    """Give a word for a list of numbers, with ``before`` and ``behind`` around it; "" if it is
    empty. Equal neighbours are counted: 3, 2, 2, 2 becomes ``3.2x3``, and seven limits of 500 W and
    one of 700 W become ``500x7.700w``."""

    def word(numbers: Sequence[int]) -> str:
        runs = ((number, len(list(run))) for number, run in itertools.groupby(numbers))
        text = ".".join(f"{n}x{times}" if times > 1 else f"{n}" for n, times in runs)
        return f"{before}{text}{behind}" if text else ""

    return word
