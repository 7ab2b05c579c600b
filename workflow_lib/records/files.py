"""Reads records from JSON files, and checks them; whole_files writes them.

Later versions read what earlier versions wrote. A format's number grows if an older version could
not read the new format, or would misread it. Format 1 is that of version 0.1, which wrote no
number.

A field that a later format of ``cell.json`` introduces has a default, which describes older cells.
``since`` of its axis is the number of that format, so the newest format is that of the newest field
(``records.cell_axes.CELL_FORMAT``). Cells with the default keep their digests, and so their runs.
Columns that were added later to runs' CSV files are marked ``LATER`` in ``records/columns.py`` and
``records/telemetry_columns.py``. For older files they are empty.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from workflow_lib.records import bounds, ranges
from workflow_lib.records.bounds import Bound
from workflow_lib.records.cell import Cell
from workflow_lib.records.cell_axes import CELL_FORMAT
from workflow_lib.records.outcomes import OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError, read_bytes, shown

#: of archives, in bag-info.txt
ARCHIVE_FORMAT = 2


def newer(given: object, known: int) -> str:
    """Why this version cannot read a format ``given``, if it reads 1 to ``known``; "" if it can."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        return f"its format is {given!r}, expected a whole number from 1 to {known}"
    if given > known:
        return (
            f"it was written in format {given} by a newer version of Triptych; this one reads "
            f"formats 1 to {known}: use that version, or a newer one"
        )
    return ""


Record = TypeVar("Record")

#: the newest format that this version reads, for each record that has a format number
_FORMATS: Mapping[type, int] = {Cell: CELL_FORMAT}
#: the range of whole numbers that tables can hold
_LEAST, _MOST = -(2**63), 2**63 - 1


def read_json(path: Path, bound: Bound = bounds.RECORD_BYTES) -> Any:
    """Read a JSON file of at most ``bound`` bytes.

    Raises OSError. Raises RecordError, which names the file, if it is not JSON in UTF-8, is too
    large or too deep, or holds a number that is not finite or does not fit into 64 bits.
    """
    content = read_bytes(path, bound)
    # More values than this would take hundreds of megabytes of memory.
    if sum(map(content.count, (b",", b"[", b"{"))) > bounds.JSON_VALUES.most:
        raise RecordError(
            f"{path}: over {bounds.JSON_VALUES.most} values, more than any record has"
        )
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise RecordError(f"{path}: {_too_deep()}") from None
    except ValueError as error:  # of letters, of syntax, or of a number with thousands of digits
        raise RecordError(f"{path}: not readable as JSON: {error}") from None
    try:
        _check_plain(value, bounds.JSON_DEPTH.most)
    except _AmissError as amiss:
        raise RecordError(f"{path}: {amiss}") from None
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _too_deep() -> str:
    return f"lists or objects lie more than {bounds.JSON_DEPTH.most} deep within each other"


class _AmissError(Exception):
    """What is wrong with a value, and the keys that lead to it, innermost first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.keys = what, [""]

    def __str__(self) -> str:
        where = "".join(self.keys[:0:-1]).removeprefix(".")
        return f"{where} {self.what}" if where else self.what


def _check_plain(value: Any, depth: int) -> None:
    """Raise _AmissError for text that is not UTF-8, and for a number that tables cannot hold."""
    kind = type(value)
    if kind is str:
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise _AmissError(f"is {shown(value)}, which is not text in UTF-8")
    elif kind is int:
        if not _LEAST <= value <= _MOST:
            raise _AmissError(f"is {shown(value)}, which 64 bits do not hold")
    elif kind is float:
        if not math.isfinite(value):
            raise _AmissError("is a number too large for 64 bits")
    elif kind in (dict, list):
        if not depth:
            raise _AmissError(f"is not readable: {_too_deep()}")
        for key, item in value.items() if kind is dict else enumerate(value):
            try:
                if kind is dict:
                    _check_plain(key, depth)
                _check_plain(item, depth - 1)
            except _AmissError as amiss:
                amiss.keys.append(f".{shown(key)[1:-1]}" if kind is dict else f"[{key}]")
                raise


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a dataclass of this package from a JSON file.

    Raises FileNotFoundError. Raises RecordError, which names the file and the key, if the content
    is not a ``kind``.
    """
    plain = read_json(path)
    known = _FORMATS.get(kind)
    if known and isinstance(plain, dict) and (problem := newer(plain.get("format", 1), known)):
        raise RecordError(f"{path}: {problem}")
    try:
        value = _decode(plain, kind, kind.__name__)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    if isinstance(value, Cell) and (problem := value.impossible):
        raise RecordError(f"{path}: {problem}")
    return typing.cast(Record, value)


def read_if_there(path: Path, kind: type[Record]) -> Record | None:
    """As read_record, but returns None if there is no such file."""
    return read_record(path, kind) if path.exists() else None


def read_outcome(paths: RunPaths) -> OutcomeRecord | None:
    """How the run's latest attempt ended; None if that is not recorded yet."""
    for path in (paths.outcome, paths.failure):
        if path.exists():
            return read_record(path, OutcomeRecord)
    return None


#: fields that the record of any measured command has
_NEEDED = (
    *("program", "started_unix_s", "rung", "simulated", "nodes"),
    *("values", "missing", "invalid", "gpus"),
)


def read_measured(directory: Path) -> dict[str, Any]:
    """A command's ``measured.json``, and its ``directory``. Raises RecordError."""
    path = RunPaths(directory).measured
    try:
        run = json.loads(path.read_bytes())
        if not isinstance(run, dict):
            raise TypeError("it is no object")
        return {"directory": directory, "window_unix_s": None} | run | {n: run[n] for n in _NEEDED}
    except FileNotFoundError:
        raise RecordError(f"{directory} has no {path.name}; name a run's directory") from None
    except ValueError as error:
        why = f"is damaged ({error}); restore it, or leave this run out"
        raise RecordError(f"{path} {why}") from None
    except KeyError as error:
        raise RecordError(f"{path} is no record of a measured command: no {error}") from None
    except TypeError as error:
        raise RecordError(f"{path} is no record of a measured command: {error}") from None


def _decode(plain: Any, kind: Any, where: str) -> Any:
    """Turn parsed JSON into ``kind``: a dataclass, or a type that a dataclass here uses."""
    if type(plain) is kind:  # a fast path for most fields: a run has a record for each rank
        return plain
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind is Any:
        return plain
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(plain, kind, where)
    if origin in (types.UnionType, typing.Union):
        if plain is None and type(None) in arguments:
            return None
        return _decode(plain, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if plain in arguments:
            return plain
    elif origin is tuple and isinstance(plain, list):
        return tuple(_decode(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(plain))
    elif origin is Mapping and isinstance(plain, dict):
        return {key: _decode(item, arguments[1], f"{where}.{key}") for key, item in plain.items()}
    elif kind is float and isinstance(plain, (int, float)) and not isinstance(plain, bool):
        return float(plain)
    elif (
        isinstance(kind, type)
        and issubclass(kind, enum.Enum)
        and plain in [member.value for member in kind]
    ):
        return kind(plain)
    raise RecordError(f"{where} is {shown(plain)}, expected {getattr(kind, '__name__', kind)}")


def _decode_dataclass(plain: Any, kind: Any, where: str) -> Any:
    if not isinstance(plain, dict):
        raise RecordError(f"{where} is {shown(plain)}, expected an object")
    hints = _hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(plain.keys() - names):
        raise RecordError(f"{where} has the unknown key {shown(unknown[0])}")
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in plain:
            value = _decode(plain[field.name], hints[field.name], f"{where}.{field.name}")
            for item in value if isinstance(value, tuple) else (value,):
                if expected := ranges.problem(field.name, item):
                    raise RecordError(f"{where}.{field.name} is {shown(item)}, expected {expected}")
            values[field.name] = value
        elif field.default is dataclasses.MISSING:
            raise RecordError(f"{where} lacks the key {field.name!r}")
    return kind(**values)


#: cached, because a process that waits for hundreds of jobs asks often
_hints = functools.cache(typing.get_type_hints)
