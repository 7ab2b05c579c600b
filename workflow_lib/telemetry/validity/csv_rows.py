"""Reads telemetry's and training's CSV files a row at a time, in little memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from workflow_lib.records import Column

Field = float | int | str | bool | None


class InvalidTelemetryError(Exception):
    """One sentence on what does not hold."""


def read_csv(path: Path, columns: Sequence[Column]) -> Iterator[tuple[int, dict[str, Field]]]:
    """Line number and parsed row of a CSV file, one at a time; a torn last line is left out.

    Raises InvalidTelemetryError, naming file and line, where a line is not what ``columns`` say,
    and FileNotFoundError.
    """
    names = [column.name for column in columns]
    header_seen = False
    with path.open("rb") as stream:
        for line, raw in enumerate(stream, start=1):
            if not raw.endswith(b"\n"):
                break
            fields = raw.decode("utf-8", "replace").rstrip("\r\n").split(",")
            if line == 1:
                if fields != names:
                    raise InvalidTelemetryError(f"{path}, line 1: not the expected column names.")
                header_seen = True
                continue
            if len(fields) != len(names):
                raise InvalidTelemetryError(
                    f"{path}, line {line}: {len(fields)} fields, expected {len(names)}."
                )
            try:
                row = {c.name: _parse(f, c) for c, f in zip(columns, fields, strict=True)}
            except ValueError as error:
                raise InvalidTelemetryError(f"{path}, line {line}: {error}.") from None
            yield line, row
    if not header_seen:
        raise InvalidTelemetryError(f"{path} is empty.")


def read_gpu_rows(
    path: Path, columns: Sequence[Column], count: int
) -> Iterator[tuple[str, float, int, dict[str, Field]]]:
    """Where a row is, its time, its GPU and its fields; a GPU's rows come in the order of time.

    Raises what :func:`read_csv` does, and InvalidTelemetryError for a GPU from ``count`` on.
    """
    latest = [-math.inf] * count
    for line, row in read_csv(path, columns):
        time_s, gpu = row["unix_time_s"], row["gpu"]
        if not isinstance(time_s, float) or not isinstance(gpu, int):
            raise InvalidTelemetryError(f"{path}, line {line}: the row has no time or no GPU.")
        if not 0 <= gpu < count:
            raise InvalidTelemetryError(f"{path}, line {line}: there is no GPU {gpu} on this node.")
        where = f"{path}, line {line}: GPU {gpu}"
        if time_s < latest[gpu]:
            raise InvalidTelemetryError(f"{where}: the clock went backwards.")
        latest[gpu] = time_s
        yield where, time_s, gpu, row


def check_rows(path: Path, columns: Sequence[Column], time: str, required: Sequence[str]) -> None:
    """Read a file to its end, for nothing but its form: what is ``required`` is in every row, and
    ``time`` never runs backwards, of a GPU where there are any.

    Raises what :func:`read_csv` does.
    """
    latest: dict[Field, float] = {}
    for line, row in read_csv(path, columns):
        for name in required:
            if row[name] is None:
                raise InvalidTelemetryError(f"{path}, line {line}: the row has no {name}.")
        gpu, now = row.get("gpu"), row[time]
        assert isinstance(now, float | int)
        if now < latest.get(gpu, -math.inf):
            raise InvalidTelemetryError(f"{path}, line {line}: the clock went backwards.")
        latest[gpu] = now


def _parse(text: str, column: Column) -> Field:
    if text == "":
        return None
    if column.type is str:
        return text
    try:
        value: float | int = int(text) if column.type is int else float(text)
    except ValueError:
        raise ValueError(f"{column.name} is {text[:40]!r}, expected a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{column.name} is {text!r}, expected a finite number")
    return value
