"""Records to JSON files and back: written whole or not at all, and checked when read."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from workflow_lib.records.cell import Cell
from workflow_lib.records.formats import CELL_FORMAT, newer
from workflow_lib.records.outcomes import OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import whole_file

Record = TypeVar("Record")

#: the newest format that is read of each record that has a number
_FORMATS: Mapping[type, int] = {Cell: CELL_FORMAT}


class RecordError(ValueError):
    """A file under ``results/`` does not hold what this module says that it holds."""


def write_json(path: Path, record: Any) -> None:
    """Write a dataclass or plain data as JSON, whole or not at all.

    The text goes to a neighbouring file, reaches the disk, and is then renamed, so that a reader
    sees the old content or the new, even after a crash. NaN and infinities are refused.
    """
    plain = dataclasses.asdict(record) if dataclasses.is_dataclass(record) else record  # type: ignore[arg-type]
    with whole_file(path, durable=True) as draft:
        draft.write_text(_text(plain) + "\n", encoding="utf-8")


def _text(plain: Any) -> str:
    """JSON for people and programs: a line for each key, and in a list of objects one for each.

    With an indent Python's encoder is not the one in C, which writes a run's GPUs in a tenth of the
    time.
    """
    encoded = functools.partial(json.dumps, allow_nan=False, ensure_ascii=False)

    def value_text(value: Any) -> str:
        if value and isinstance(value, list | tuple) and all(isinstance(v, dict) for v in value):
            rows = ",\n".join(f"    {encoded(row)}" for row in value)
            return f"[\n{rows}\n  ]"
        return encoded(value, indent=2).replace("\n", "\n  ")

    if not isinstance(plain, dict) or not plain:
        return encoded(plain, indent=2)
    items = (f"  {encoded(str(key))}: {value_text(value)}" for key, value in plain.items())
    return "{\n" + ",\n".join(items) + "\n}"


def read_json(path: Path) -> Any:
    """Read JSON. Raises RecordError, naming the file, where it is not JSON in UTF-8."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(f"{path}: not readable as JSON: {error}") from None


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read one of this module's dataclasses from a JSON file.

    Raises FileNotFoundError, or RecordError with the file and the key where the content is not a
    ``kind``.
    """
    plain = read_json(path)
    known = _FORMATS.get(kind)
    if known and isinstance(plain, dict) and (problem := newer(plain.get("format", 1), known)):
        raise RecordError(f"{path}: {problem}")
    try:
        value = _decode(plain, kind, kind.__name__)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    return typing.cast(Record, value)


def read_if_there(path: Path, kind: type[Record]) -> Record | None:
    """As read_record, but None where there is no such file."""
    return read_record(path, kind) if path.exists() else None


def read_outcome(paths: RunPaths) -> OutcomeRecord | None:
    """How the run's latest attempt ended, or None where it has not."""
    for path in (paths.outcome, paths.failure):
        if path.exists():
            return read_record(path, OutcomeRecord)
    return None


def _decode(plain: Any, kind: Any, where: str) -> Any:
    """Turn parsed JSON into ``kind``: a dataclass, or a type that a dataclass here uses."""
    if type(plain) is kind:  # most fields: a run has a record a rank
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
    raise RecordError(f"{where} is {plain!r}, expected {getattr(kind, '__name__', kind)}")


def _decode_dataclass(plain: Any, kind: Any, where: str) -> Any:
    if not isinstance(plain, dict):
        raise RecordError(f"{where} is {plain!r}, expected an object")
    hints = _hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(plain.keys() - names):
        raise RecordError(f"{where} has the unknown key {unknown[0]!r}")
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in plain:
            values[field.name] = _decode(
                plain[field.name], hints[field.name], f"{where}.{field.name}"
            )
        elif field.default is dataclasses.MISSING:
            raise RecordError(f"{where} lacks the key {field.name!r}")
    return kind(**values)


#: asked for each of hundreds of jobs in flight
_hints = functools.cache(typing.get_type_hints)
