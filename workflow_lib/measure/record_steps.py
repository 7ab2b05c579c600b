"""Steps by records that trainers write anyway, read once the command has ended.

Two kinds are known, by what is in the file: TensorBoard's events, and the structured log of
torchtitan, a JSON object a line. A record has a step, and when it was written by the host's clock.
It ends all steps since the record before it.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from workflow_lib.measure.log_steps import COLUMNS, Moment, resumed_from, row_between

FILE = "records.csv"
#: code → why records tell no steps, or none after some record
WHY: Mapping[str, str] = {
    "records_not_found": "no file of the records can be read",
    "records_not_known": "the records are neither TensorBoard's events nor torchtitan's log",
    "records_not_of_this_run": "no two steps were recorded while the command ran",
    "record_cut_off": "the last record is cut off",
    "record_damaged": "a record is damaged; what follows it was not read",
}
_CASTAGNOLI = 0x82F63B78
_HEADER = struct.Struct("<QI")
#: bytes at the beginning that tell the kind of a file
_HEAD = 65536


class _EndedError(Exception):
    """Nothing more can be read of a file. The message is a code of :data:`WHY`."""


class _Found(NamedTuple):
    """What a file has of the run."""

    code: str | None
    source: str
    moments: list[Moment]


def write(pattern: str, steps: Path, known: Mapping[str, Any]) -> str | None:
    """Write ``steps/records.csv`` of the files that a glob pattern matches, if they have steps of
    the command. Returns a code of :data:`WHY`, or None if every record was read.

    Of several files, as of several ranks, and of several series in a file, the one with the most
    steps counts. Raises OSError if it cannot be written.
    """
    code, source, moments = _longest(pattern, known["started_unix_s"], known["ended_unix_s"])
    pairs = list(zip(moments, moments[1:]))
    begun = (resumed_from(*pair) for pair in pairs)
    last = known["warmup_steps"] + next((step for step in begun if step is not None), 0)
    rows = [row_between(*pair, last, source) for pair in pairs]
    with (steps / FILE).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row for row in rows if row)
    return code


def _longest(pattern: str, started: float, ended: float) -> _Found:
    candidates = [_Found("records_not_found", "", [])]
    for path in _matches(pattern):
        try:
            code, source, series = _read(path)
        except OSError:
            continue
        of_run = [[m for m in every if started <= m[1] <= ended] for every in series.values()]
        # Of Megatron-LM's series some have samples in place of steps, which grow faster.
        moments = max(
            of_run, key=lambda series: (len(series), -series[-1][0] if series else 0), default=[]
        )
        if len(moments) < 2:
            code = code or "records_not_of_this_run"
        candidates.append(_Found(code, source, moments))
    # A file that can be read says more than one that cannot.
    codes = tuple(WHY)
    return max(candidates, key=lambda one: (len(one.moments), codes.index(one.code or codes[-1])))


def _matches(pattern: str) -> list[Path]:
    """Files in the order of their names, so that rank 0 is before the others."""
    if Path(pattern).is_file():
        return [Path(pattern)]
    # Path.glob takes no pattern that is absolute.
    names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    return [path for path in map(Path, names) if path.is_file()]


def _read(path: Path) -> tuple[str | None, str, dict[str, list[Moment]]]:
    """Why reading a file ended before its end, what kind it is, and its moments by their series.

    Raises OSError.
    """
    series: dict[str, list[Moment]] = {}
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
        stream.seek(0)
        try:
            if len(head) >= _HEADER.size and _HEADER.unpack_from(head)[1] == masked(head[:8]):
                kind, events = "tensorboard", _events(stream)
            elif _is_titan(head):
                kind, events = "torchtitan", _titan(stream)
            else:
                return "records_not_known", "", series
            for name, step, at in events:
                moments = series.setdefault(name, [])
                if not moments or moments[-1][0] != step:
                    moments.append((step, at))
        except _EndedError as ended:
            return str(ended), kind, series
    return None, kind, series


def _is_titan(head: bytes) -> bool:
    try:
        first = json.loads(head.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and {"time_us", "log_type_name"} <= first.keys()


def _titan(stream: BinaryIO) -> Iterator[tuple[str, int, float]]:
    """The ends of torchtitan's steps."""
    for line in stream:
        try:
            record = json.loads(line)
            if record["log_type_name"] == "step_end":
                yield "step_end", int(record["step"]), record["time_us"] / 1e6
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            whole = line.endswith(b"\n")
            raise _EndedError("record_damaged" if whole else "record_cut_off") from None


def _events(stream: BinaryIO) -> Iterator[tuple[str, int, float]]:
    """TensorBoard's series, step and time of each value."""
    size = os.fstat(stream.fileno()).st_size
    while header := stream.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise _EndedError("record_cut_off")
        length, checksum = _HEADER.unpack(header)
        if checksum != masked(header[:8]):
            raise _EndedError("record_damaged")
        if length + 4 > size - stream.tell():
            raise _EndedError("record_cut_off")
        data = stream.read(length)
        if int.from_bytes(stream.read(4), "little") != masked(data):
            raise _EndedError("record_damaged")
        try:
            yield from _values(data)
        except (IndexError, TypeError, ValueError, struct.error):
            raise _EndedError("record_damaged") from None


def _values(event: bytes) -> Iterator[tuple[str, int, float]]:
    at, step, summaries = b"", 0, []
    for field, value in _fields(event):
        if field == 1:
            at = value
        elif field == 2:
            step = value
        elif field == 5:
            summaries.append(value)
    for summary in summaries:
        for field, value in _fields(summary):
            tag = dict(_fields(value)).get(1, b"").decode() if field == 1 else ""
            # Some trainers count samples in such series, as DeepSpeed in "Train/Samples/lr".
            if tag and "samples" not in tag.lower():
                yield tag, step, struct.unpack("<d", at)[0]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message. Raises ValueError or IndexError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(message, at)
        else:
            length, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
            if not 0 <= length <= len(message) - at:
                raise ValueError("this is no field")
            value, at = message[at : at + length], at + length
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where the next field begins."""
    value, shift = 0, 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _table() -> list[int]:
    entries = list(range(256))
    for _ in range(8):
        entries = [entry >> 1 ^ (_CASTAGNOLI if entry & 1 else 0) for entry in entries]
    return entries


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The checksum by Castagnoli's polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The checksum as TFRecord files have it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
