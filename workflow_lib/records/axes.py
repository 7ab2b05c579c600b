"""Axes: what a field of a cell is called, what it does, and how it shows in names.

A field of :class:`~workflow_lib.records.cell.Cell` or of one of its parts is declared once, where
it is defined::

    seed: Annotated[int, Axis("of the initial weights and the order of the data", "work")]

All else derives from that: columns of tables, names of directories, labels in figures, which cells
are put side by side, which compete, and which correspond in two sweeps. It needs nothing but the
standard library.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: what a field does. ``work`` is what a cell is asked to do: cells of different work have no
#: common best. ``layout`` and ``option`` are how it does that, and where figures look for what is
#: best. ``protocol`` is how its runs are measured. ``place`` is where they run. A field for the
#: ``analysis`` alone tells no two cells apart, so that to correct it trains nothing again.
Role = Literal["work", "layout", "option", "protocol", "place", "analysis"]


@dataclass(frozen=True)
class Axis:
    """What a field of a cell is to tables, names and people."""

    description: str
    role: Role
    unit: str = ""
    #: name of the column, where the field's own name would not tell it from others
    column: str = ""
    #: what people call it, beside its value; the column's name with blanks where empty
    label: str = ""
    #: whether its value alone says what it is, as "bf16" does
    says_itself: bool = False
    #: another axis, by its column, and the value of it without which this one means nothing
    only_with: tuple[str, Any] | None = None
    #: its word in the cell's name; a value without one is ""
    word: Callable[[Any], str] = lambda value: ""
    #: whether that word stands right behind the one before it
    joins: bool = False
    #: kinds of figures whose cells differ in it
    varied_by: tuple[str, ...] = ()
    #: the format of cell.json that brought the field. One that came later than the first has a
    #: default, which is what cells were without it; with that value it is no part of their digests
    since: int = 1


@dataclass(frozen=True)
class Field:
    """A field of a record that is an axis."""

    name: str
    #: how tables hold it: int, float, bool or str
    type: type
    #: whether it is a tuple or a mapping, which tables hold as JSON text, null where it is empty
    is_nested: bool
    #: what it is where nobody says; dataclasses.MISSING where that must be said
    default: Any
    axis: Axis


@functools.cache
def fields(record: type) -> tuple[Field, ...]:
    """The axes that a record's own fields are, in their order."""
    hints = typing.get_type_hints(record, include_extras=True)
    found = []
    for each in dataclasses.fields(record):
        marks = getattr(hints[each.name], "__metadata__", ())
        for axis in marks:
            if isinstance(axis, Axis):
                plain, is_nested = _stored(typing.get_args(hints[each.name])[0])
                found.append(Field(each.name, plain, is_nested, each.default, axis))
    return tuple(found)


def as_before(record: Any) -> frozenset[str]:
    """The names of fields that came later, and have what the record was without them."""
    return frozenset(
        field.name
        for field in fields(record.__class__)
        if field.axis.since > 1 and getattr(record, field.name) == field.default
    )


def _stored(kind: Any) -> tuple[type, bool]:
    """As what a table holds a field of this type, and whether as JSON text."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _stored(next(each for each in arguments if each is not type(None)))
    if origin is Literal:
        return type(arguments[0]), False
    if origin in (tuple, Mapping):
        return str, True
    return kind, False


def words(record: Any) -> Iterator[str]:
    """The words of a record's name, from those of its fields that have one."""
    return joined(
        (field.axis, field.axis.word(getattr(record, field.name)))
        for field in fields(record.__class__)
    )


def joined(said: Iterable[tuple[Axis, str]]) -> Iterator[str]:
    """Words of axes, those that join put behind the one before; "" is left out."""
    word = ""
    for axis, more in said:
        if axis.joins:
            word += more
        elif more:
            if word:
                yield word
            word = more
    if word:
        yield word


def flag(word: str) -> Callable[[bool], str]:
    """A word where a field is true."""
    return lambda value: word if value else ""


def beside(word: str) -> Callable[[Any], str]:
    """A word and the value, where that is not 0."""
    return lambda value: f"{word}{value}" if value else ""
