"""Reads the events of a trace file, batch by batch, even if the file is damaged.

A file is ``{…, "traceEvents": [{…}, {…}], …}`` or the list alone, gzipped or not, and may be larger
than memory. It is cut where ``}, {`` stands, which may also be inside of an event. So the part
before a cut is decoded as a list, which fails unless it consists of whole elements. A part that
fails is read again element by element, by a decoder that accepts some text that JSON forbids.
Elements that it cannot read either are counted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
from isal import igzip_lib, isal_zlib

from workflow_lib.records import bounds
from workflow_lib.records.reading import open_file


class Notes:
    """Counts of what was left out or repaired, as sentences in the order in which each first
    occurred."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count one or more cases; ``what`` is the same text each time."""
        self._counts[what] = self._counts.get(what, 0) + count

    def sentences(self) -> tuple[str, ...]:
        """Each text once, with its count if that is more than one."""
        return tuple(
            what if count == 1 else f"{what} ({count} times)"
            for what, count in self._counts.items()
        )


#: bytes that are decompressed at once; a batch of events is about as large
CHUNK_BYTES = 2 << 20
#: an event longer than this is damage
LONGEST_EVENT_BYTES = bounds.TRACE_EVENT_BYTES.most

#: in the header of a trace that was shortened (see shortening): the bytes of its JSON text before
WHOLE_BYTES = "triptychWholeBytes"

_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_TEXT_BOUNDARY = re.compile(r"\}\s*,\s*(?=\{)")
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_DIGITS_KEPT = 400
#: errors of decoding; RecursionError if something is nested a thousand levels deep
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Event(msgspec.Struct, gc=False):
    """The fields of every event that are decoded, in the order in which Kineto writes them.

    ``args`` are decoded only where they are needed.
    """

    cat: str | None = None
    name: str | None = None
    #: µs
    ts: float | None = None
    #: µs
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ThreadEvent(Event, gc=False):
    """An event with the thread that it ran on."""

    tid: int | str | None = None


def _integer(digits: str) -> int | float | None:
    return int(digits) if len(digits) < 19 else _real(digits)


def _real(digits: str) -> float | None:
    value = float(digits[:_DIGITS_KEPT])
    return value if math.isfinite(value) and len(digits) <= _DIGITS_KEPT else None


_LENIENT = json.JSONDecoder(
    strict=False, parse_int=_integer, parse_float=_real, parse_constant=lambda _: None
)


class TraceFile:
    """A trace file; iterating over it, which works only once, gives lists of its events.

    ``header`` is complete after the first list, ``notes`` after the last.
    """

    def __init__(self, path: Path, notes: Notes, kind: type[Event] = Event) -> None:
        self.path = path
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._lenient: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, strict=False)
        #: the file's other fields, of those that stand before its events
        self.header: dict[str, Any] = {}
        self.bytes_read = 0
        self._notes = notes
        self._list_alone = False
        self._ended = False
        self._damaged = 0

    @property
    def _hopeless(self) -> bool:
        """Whether so many events are damaged that reading on would take long and find nothing."""
        return self._damaged > bounds.TRACE_DAMAGED_EVENTS.most

    def __iter__(self) -> Iterator[list[Event]]:
        rest = b""
        inside = False
        for chunk in self._chunks():
            self.bytes_read += len(chunk)
            if not inside and not self._ended:
                rest += chunk
                begun = self._enter(rest)
                if begun is None and len(rest) > LONGEST_EVENT_BYTES:
                    break
                if begun is None:
                    continue
                inside, chunk, rest = True, rest[begun:], b""
            cut = None if self._ended else _last_boundary(chunk)
            if cut is None:
                rest += chunk
                if len(rest) > LONGEST_EVENT_BYTES:
                    rest = b""
                    self._notes.add("an event is too long, and was left out")
                continue
            events, left = self._decode(b"".join((b"[", rest, memoryview(chunk)[: cut[0]], b"]")))
            # The rest of an element that was cut goes before the next chunk, with its separator.
            rest = left + chunk[cut[0] :] if left or self._ended else chunk[cut[1] :]
            yield events
            if self._hopeless:
                return
        if not inside:
            self._notes.add("the file holds no list of events")
            return
        if not self._ended:
            events, rest = self._element_by_element(rest, last=True)
            yield events
        if self._ended:
            self._leave(rest)
        else:
            self._notes.add("the file ends before its list of events does")

    def _chunks(self) -> Iterator[bytes]:
        """The file's text, up to the size that a trace of the file's size can unpack to."""
        size = self.path.stat().st_size
        left = min(
            bounds.TRACE_BYTES.most, bounds.TRACE_RATIO_FREE_BYTES + size * bounds.TRACE_RATIO.most
        )
        for chunk in self._unpacked():
            left -= len(chunk)
            if left < 0:
                self._notes.add("the file unpacks to more than traces do; the rest was not read")
                return
            yield chunk

    def _unpacked(self) -> Iterator[bytes]:
        with open_file(self.path) as stream:
            gzipped = stream.read(2) == b"\x1f\x8b"
            stream.seek(0)
            if not gzipped:
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk
                return
            inflater = isal_zlib.decompressobj(wbits=31)
            while data := stream.read(CHUNK_BYTES // 8):
                while data:
                    try:
                        chunk = inflater.decompress(data, CHUNK_BYTES)
                    except igzip_lib.IsalError as error:  # type: ignore[misc]
                        self._notes.add(f"the file's compression is damaged: {error}")
                        return
                    data = inflater.unconsumed_tail
                    if chunk:
                        yield chunk
                    if inflater.eof:
                        data = inflater.unused_data + data
                        if data.strip(b"\0") == b"":
                            data = b""
                        elif not data.startswith(b"\x1f\x8b"):
                            self._notes.add(
                                "something that is not gzip follows the compressed file"
                            )
                            return
                        inflater = isal_zlib.decompressobj(wbits=31) if data else inflater
            while not inflater.eof and (chunk := inflater.decompress(b"", CHUNK_BYTES)):
                yield chunk
            if not inflater.eof:
                self._notes.add("the compressed file ends early")

    def _enter(self, buffer: bytes) -> int | None:
        """Read the header; return where the list's elements begin, or None if that is not reached
        yet."""
        if buffer.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            self._list_alone = True
            return buffer.index(b"[") + 1
        match = _LIST.search(buffer)
        if match is None:
            return None
        head = buffer[: match.start()].lstrip(b"\xef\xbb\xbf").rstrip().rstrip(b",") + b"}"
        try:
            header = _LENIENT.decode(head.decode("utf-8", "replace"))
        except (json.JSONDecodeError, RecursionError) as error:
            self._notes.add(f"what stands before the events is not readable: {error}")
        else:
            self.header = header if isinstance(header, dict) else {}
        return match.end()

    def _leave(self, rest: bytes) -> None:
        """Check what follows the list."""
        text = rest.decode("utf-8", "replace").strip()
        try:
            if self._list_alone:
                whole = text == ""
            else:  # the object's end follows, as in ``, "a": 1}``
                whole = isinstance(_LENIENT.decode("{" + text.lstrip(", \t\r\n")), dict)
        except (json.JSONDecodeError, RecursionError):
            whole = False
        if not whole:
            self._notes.add("what follows the list of events is damaged")

    def _decode(self, array: bytes) -> tuple[list[Event], bytes]:
        """The events of an array, and its last bytes if they belong to an element that goes on
        after it."""
        try:
            return self._decoder.decode(array), b""
        except _UNREADABLE:
            return self._element_by_element(array[1:-1], last=False)

    def _element_by_element(self, data: bytes, last: bool) -> tuple[list[Event], bytes]:
        # Surrogates stand for bytes that are not UTF-8, so that the rest that is returned keeps
        # them.
        text = data.decode("utf-8", "surrogateescape")
        events: list[Event] = []
        position = 0
        while True:
            between = _BETWEEN.match(text, position)
            position = between.end() if between else position
            if position >= len(text):
                return events, b""
            if text[position] == "]":
                self._ended = True
                return events, text[position + 1 :].encode("utf-8", "surrogateescape")
            try:
                value, position = _LENIENT.raw_decode(text, position)
            except (json.JSONDecodeError, RecursionError) as error:
                if (
                    not last
                    and _runs_out(error, text)
                    and len(text) - position < LONGEST_EVENT_BYTES
                ):
                    return events, text[position:].encode("utf-8", "surrogateescape")
                following = _TEXT_BOUNDARY.search(text, position)
                if following is None:
                    what = (
                        "an event is cut off by the end of the file"
                        if last
                        else "an event is damaged"
                    )
                    self._notes.add(f"{what}, and was left out")
                    return events, b""
                self._notes.add("an event is damaged, and was left out")
                self._damaged += 1
                if self._hopeless:
                    self._notes.add("so many events are damaged that the rest was not read")
                    return events, b""
                position = following.end()
                continue
            event = self._event(value)
            if event is not None:
                events.append(event)

    def _event(self, value: Any) -> Event | None:
        plain = json.dumps(value, ensure_ascii=False)
        encoded = plain.encode("utf-8", "replace")
        if len(encoded) != len(plain.encode("utf-8", "surrogatepass")):
            self._notes.add("an event holds bytes that are not UTF-8, which were replaced")
        try:
            return cast(Event, self._lenient.decode(encoded))
        except _UNREADABLE:
            self._notes.add("an event has a field of the wrong type, and was left out")
            return None


def _last_boundary(chunk: bytes) -> tuple[int, int] | None:
    """The end of the last element that is followed by another, and the start of that one."""
    for window in (1 << 14, len(chunk)):
        last = None
        for boundary in _BOUNDARY.finditer(chunk, max(0, len(chunk) - window)):
            last = boundary
        if last is not None:
            return last.start() + 1, last.end()
    return None


def _runs_out(error: Exception, text: str) -> bool:
    """Whether an element might be completed by more text."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip())
