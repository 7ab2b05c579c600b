"""What waiting processes say to whoever watches them."""

from __future__ import annotations

import contextlib
import sys
from contextvars import ContextVar
from typing import TextIO

from workflow_lib.safety import printable

#: of the run that this process, or else this thread, waits for
_stream: ContextVar[TextIO | None] = ContextVar("_stream", default=None)
_said: set[tuple[TextIO, str]] = set()


def tell(stream: TextIO) -> None:
    """Let what this thread says go to ``stream``."""
    _stream.set(stream)


def say(message: str) -> None:
    """Print a line. Nobody may be left to read it, as after a terminal was closed: a run goes on
    all the same.
    """
    with contextlib.suppress(OSError):
        stream = _stream.get() or sys.stderr
        stream.write(printable(f"triptych: {message}\n"))
        stream.flush()


def say_once(message: str) -> None:
    """As say, but the same message only once."""
    said = (_stream.get() or sys.stderr, message)
    if said not in _said:
        _said.add(said)
        say(message)
