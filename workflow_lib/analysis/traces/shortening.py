"""Leaves out of a GPU's trace the events that no table is made of.

A third to a sixth of its bytes remains, and is read as the whole is (see batches): kernels, copies
and sets, with the launches of each, the profiler's steps, announcements of collectives, and
operators whose kernels' names do not tell what they do. Each of these events stays as it was.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec

from workflow_lib.analysis.traces.batches import ANNOTATIONS, ANNOUNCEMENT, ON_GPU, Identifiers
from workflow_lib.analysis.traces.decoding import WHOLE_BYTES
from workflow_lib.analysis.traces.names import UNKNOWN, class_of_kernel
from workflow_lib.records import bounds


class _Event(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    args: Identifiers = msgspec.field(default_factory=Identifiers)


def shortened(path: Path) -> bytes | None:
    """The gzipped JSON of the shorter trace; None where the file at ``path`` is not gzipped JSON
    with kernels, or is too long to be read at once: then it has to stay as it is.

    Raises OSError.
    """
    most = bounds.TRACE_BYTES_AT_ONCE.most
    try:
        with gzip.open(path) as source:
            text = source.read(int(most) + 1)
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        events = msgspec.json.decode(fields["traceEvents"], type=list[msgspec.Raw])
        read = [msgspec.json.decode(event, type=_Event) for event in events]
    except (gzip.BadGzipFile, EOFError, KeyError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    kernels = [event for event in read if event.cat in ON_GPU]
    if len(text) > most or not kernels:
        return None
    launches = {event.args.correlation for event in kernels}
    telling = {e.args.external for e in kernels if class_of_kernel(e.name or "") == UNKNOWN}

    def is_read(event: _Event) -> bool:
        if event.cat in ON_GPU or event.ph != "X":
            return event.cat in ON_GPU or event.ph == "M"
        if event.cat == "cpu_op":
            return event.name == ANNOUNCEMENT or event.args.external in telling
        if event.cat == "user_annotation":
            return (event.name or "").startswith(ANNOTATIONS)
        return event.args.correlation is not None and event.args.correlation in launches

    kept = [raw for raw, event in zip(events, read, strict=True) if is_read(event)]
    fields["traceEvents"] = msgspec.Raw(msgspec.json.encode(kept))
    return gzip.compress(msgspec.json.encode({WHOLE_BYTES: len(text), **fields}), mtime=0)
