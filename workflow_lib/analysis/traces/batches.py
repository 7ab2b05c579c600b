"""Sorts the events of a trace, batch by batch, into frames of kernels, launches and operators.

Events that PyTorch's Kineto writes as ``kernel``, ``gpu_memcpy`` and ``gpu_memset`` count as
kernels. A trace without any of these comes from a CPU: there operators, and gloo's work, take their
place.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Annotated, Any, TypeVar

import msgspec
import polars as pl

from workflow_lib.analysis.traces.decoding import Event, Notes
from workflow_lib.analysis.traces.names import (
    CLASSES,
    COMMUNICATION,
    UNKNOWN,
    class_of_kernel,
    class_of_launched,
    class_of_operator,
)

#: one day, in ns; a kernel or profile that is longer is damage
LONGEST_NS = 86_400 * 10**9
#: µs; above this, the last digit of a float is more than a nanosecond
_EXACT_US = 2.0**43
_ROWS_A_FRAME = 1 << 16
#: how the annotations begin that are read
ANNOTATIONS = ("ProfilerStep#", "Optimizer.step")
_POSSIBLE_US = 2.0**62 / 1000

_KERNEL, _LAUNCH, _OPERATOR, _ANNOTATION = "kernel", "launch", "operator", "annotation"
#: what runs on a GPU; the last three as older versions wrote them
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
#: the operator that tells of a collective
ANNOUNCEMENT = "record_param_comms"
_CATEGORIES = {
    **dict.fromkeys(ON_GPU, _KERNEL),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), _LAUNCH),
    **dict.fromkeys(("hip_runtime", "hip_driver"), _LAUNCH),
    "cpu_op": _OPERATOR,
    "user_annotation": _ANNOTATION,
}


#: the classes that a number in a byte stands for; 0 is that nothing is known
_NUMBERED = (UNKNOWN, *(kind for kind in CLASSES if kind != UNKNOWN))
#: what a column of a frame holds: Kineto writes no greater number
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Collective(msgspec.Struct, frozen=True, gc=False):
    """What torch records of a collective, on its kernel or on its ``record_param_comms``."""

    name: str | None = msgspec.field(default=None, name="Collective name")
    sent_elements: _Int64 | None = msgspec.field(default=None, name="In msg nelems")
    received_elements: _Int64 | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: _Int64 | None = msgspec.field(default=None, name="Group size")
    element_type: str | None = msgspec.field(default=None, name="dtype")
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    description: str | None = msgspec.field(default=None, name="Process Group Description")
    ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")
    source: _Int64 | None = msgspec.field(default=None, name="Src Rank")
    destination: _Int64 | None = msgspec.field(default=None, name="Dst Rank")


class Identifiers(msgspec.Struct, gc=False):
    """The numbers that link an event to others."""

    correlation: _Int64 | None = None
    external: _Int64 | None = msgspec.field(default=None, name="External id")
    device: _Int64 | None = None


class ExternalId(msgspec.Struct, gc=False):
    """The number of an operator."""

    external: _Int64 | None = msgspec.field(default=None, name="External id")


_Class = TypeVar("_Class")


class _Classes(dict[str | None, _Class]):
    """The class of each name, computed once."""

    def __init__(self, class_of: Callable[[str], _Class]) -> None:
        self._class_of = class_of

    def __missing__(self, name: str | None) -> _Class:
        kind = self[name] = self._class_of(name or "")
        return kind


class _Rows:
    """Rows of events, collected by column and turned into frames, many rows at a time."""

    def __init__(self, notes: Notes, **columns: Any) -> None:
        self._notes = notes
        self._schema = {"start_us": pl.Float64, "length_us": pl.Float64, **columns}
        self._columns: dict[str, list[Any]] = {name: [] for name in self._schema}
        self._frames: list[pl.DataFrame] = []

    def extend(self, events: Sequence[Event], **columns: Iterable[Any]) -> None:
        """Add a row for each event: its time, and the given columns."""
        self._columns["start_us"] += [event.ts for event in events]
        self._columns["length_us"] += [event.dur for event in events]
        for name, values in columns.items():
            self._columns[name] += values
        if len(self._columns["start_us"]) >= _ROWS_A_FRAME:
            self._flush()

    def __bool__(self) -> bool:
        return bool(self._frames or self._columns["start_us"])

    def clear(self) -> None:
        """Forget all rows."""
        self._frames = []
        self._columns = {name: [] for name in self._schema}

    def frame(self) -> pl.DataFrame:
        """All rows, with ``start_ns`` and ``end_ns``."""
        self._flush()
        return pl.concat(self._frames)

    def _flush(self) -> None:
        """Turn the collected columns into a frame, without events whose times are impossible."""
        frame = pl.DataFrame(self._columns, self._schema)
        self._columns = {name: [] for name in self._schema}
        start, length = pl.col("start_us"), pl.col("length_us")
        possible = (start.abs() < _POSSIBLE_US) & length.is_between(0, LONGEST_NS / 1000)
        kept = frame.filter(possible.fill_null(False))
        if gone := frame.height - kept.height:
            self._notes.add("an event has no time, or an impossible one, and was left out", gone)
        if coarse := kept.filter((start.abs() >= _EXACT_US) & (start.floor() != start)).height:
            self._notes.add("a time counts from 1970, and is rounded to a quarter µs", coarse)
        # The fraction is converted by itself, because a float is too coarse for a whole time in ns.
        whole = start.floor().cast(pl.Int64) * 1000
        start_ns = whole + ((start - start.floor()) * 1000).round().cast(pl.Int64)
        self._frames.append(
            kept.select(
                start_ns.alias("start_ns"),
                (start_ns + (length * 1000).round().cast(pl.Int64)).alias("end_ns"),
                pl.exclude("start_us", "length_us"),
            )
        )


class Batches:
    """Takes the events of one trace, batch by batch."""

    def __init__(self, notes: Notes, with_operators: bool) -> None:
        self._notes = notes
        self._with_operators = with_operators
        self._kernel_class = _Classes(class_of_kernel)
        self._operator_class = _Classes(class_of_operator)
        self._launched_class = _Classes(lambda name: _NUMBERED.index(class_of_launched(name)))
        self._indices: dict[Collective, int] = {}
        self.kernels = _Rows(
            notes,
            **{"class": pl.String},
            correlation=pl.Int64,
            collective=pl.Int32,
            external=pl.Int64,
            device=pl.Int64,
        )
        self.launches = _Rows(notes, correlation=pl.Int64)
        #: ``whole`` is true if operators that run within this one are ignored
        self.operators = _Rows(notes, thread=pl.String, **{"class": pl.String}, whole=pl.Boolean)
        #: annotations of the profiler's steps and of the optimiser's
        self.annotations = _Rows(notes, name=pl.String)
        #: (an operator's external id, the index of the collective that it announces)
        self.announced: list[tuple[int, int]] = []
        # Plain arrays, because a trace has more operators than kernels.
        self._launching = array("q"), bytearray()

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The distinct descriptions of collectives; kernels refer to them by index."""
        return tuple(self._indices)

    def launched_classes(self) -> pl.DataFrame:
        """``external`` of each operator whose kernels are of one class, and that ``class``."""
        ids, kinds = self._launching
        named = pl.Series(_NUMBERED).gather(pl.Series(kinds, dtype=pl.UInt8))
        return pl.DataFrame({"external": pl.Series(ids, dtype=pl.Int64), "class": named})

    def take(self, events: Sequence[Event]) -> None:
        """Sort one batch of events."""
        sorted_: dict[str, list[Event]] = {kind: [] for kind in _CATEGORIES.values()}
        # One look-up for each event, because this loop sees every event of a trace.
        append_to = {category: sorted_[kind].append for category, kind in _CATEGORIES.items()}.get
        for event in events:
            append = append_to(event.cat)  # type: ignore[arg-type]
            if append is not None:
                append(event)
        self._take_kernels(sorted_[_KERNEL])
        self._take_launches(sorted_[_LAUNCH])
        self._take_announcements(sorted_[_OPERATOR])
        self._take_launching(sorted_[_OPERATOR])
        if self._with_operators:
            self._take_operators([*sorted_[_OPERATOR], *sorted_[_ANNOTATION]])
        self._take_annotations(sorted_[_ANNOTATION])

    def _take_kernels(self, events: list[Event]) -> None:
        of = _decode_args(events, Identifiers, "the args field of a kernel", self._notes)
        classes = [self._kernel_class[event.name] for event in events]
        communicating = [i for i, kind in enumerate(classes) if kind in COMMUNICATION]
        collectives: list[int | None] = [None] * len(events)
        for i, index in zip(
            communicating, self._collectives_of([events[i] for i in communicating]), strict=True
        ):
            collectives[i] = index
        self.kernels.extend(
            events,
            **{"class": classes},
            correlation=[identifiers.correlation for identifiers in of],
            collective=collectives,
            external=[identifiers.external for identifiers in of],
            device=[identifiers.device for identifiers in of],
        )

    def _take_launches(self, events: list[Event]) -> None:
        of = _decode_args(events, Identifiers, "the args field of a launch", self._notes)
        self.launches.extend(events, correlation=[identifiers.correlation for identifiers in of])

    def _take_announcements(self, events: list[Event]) -> None:
        # A kernel repeats the contents of this operator only if Kineto links the two.
        announcing = [event for event in events if event.name == ANNOUNCEMENT]
        of = _decode_args(announcing, Identifiers, "the args field of a collective", self._notes)
        for identifiers, index in zip(of, self._collectives_of(announcing), strict=True):
            if identifiers.external is not None and index is not None:
                self.announced.append((identifiers.external, index))

    def _take_launching(self, events: list[Event]) -> None:
        of_events = bytes([self._launched_class[event.name] for event in events])
        deciding = list(compress(events, of_events))
        of = _decode_args(deciding, ExternalId, "the args field of an operator", self._notes)
        ids, kinds = self._launching
        # No kernel has the id −1.
        ids.extend([-1 if operator.external is None else operator.external for operator in of])
        kinds += of_events.replace(b"\0", b"")

    def _take_operators(self, events: list[Event]) -> None:
        kept = [
            event
            for event in events
            if event.name
            and (event.name.startswith("gloo:") or event.cat == "cpu_op")
            # c10d's operators only hand their work to gloo's threads.
            and not event.name.startswith("c10d::")
        ]
        self.operators.extend(
            kept,
            thread=[str(getattr(event, "tid", None)) for event in kept],
            **{"class": [self._operator_class[event.name] for event in kept]},
            whole=[str(event.name).startswith(("aten::", "gloo:")) for event in kept],
        )

    def _take_annotations(self, events: list[Event]) -> None:
        kept = [e for e in events if e.name and e.name.startswith(ANNOTATIONS)]
        self.annotations.extend(kept, name=[event.name for event in kept])

    def _collectives_of(self, events: list[Event]) -> list[int | None]:
        """The index of each event's description of a collective; None if it has none."""
        decoded = _decode_args(events, Collective, "the args field of a collective", self._notes)
        return [
            None
            if collective.name is None and collective.group is None and collective.ranks is None
            else self._indices.setdefault(collective, len(self._indices))
            for collective in decoded
        ]


_Args = TypeVar("_Args", Collective, Identifiers, ExternalId)
_DECODERS: dict[Any, Any] = {
    kind: (msgspec.json.Decoder(list[kind]), msgspec.json.Decoder(kind))  # type: ignore[valid-type]
    for kind in (Collective, Identifiers, ExternalId)
}


def _decode_args(events: list[Event], kind: type[_Args], what: str, notes: Notes) -> list[_Args]:
    """The ``args`` of each event as ``kind``; empty where they are not readable."""
    together, alone = _DECODERS[kind]
    unreadable = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
    try:
        decoded: list[_Args] = together.decode(b"[%b]" % b",".join(event.args for event in events))
    except unreadable:
        decoded = []
        for event in events:
            try:
                decoded.append(alone.decode(event.args))
            except unreadable:
                notes.add(f"{what} is not readable, and was left out")
                decoded.append(kind())
    return decoded
