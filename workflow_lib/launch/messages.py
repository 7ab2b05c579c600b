"""What is said of runs to whoever watches them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from workflow_lib.safety import printable

#: of the run that this thread waits for
_log: ContextVar[Path | None] = ContextVar("_log", default=None)
_said: set[tuple[Path | None, str]] = set()


@contextlib.contextmanager
def logged(log: Path) -> Iterator[None]:
    """Write what this thread says into a new file as well, where that can be written."""
    with contextlib.suppress(OSError):
        log.write_bytes(b"")
    token = _log.set(log)
    try:
        yield
    finally:
        _log.reset(token)


def say(message: str) -> None:
    """Print a line. Nobody may be left to read it, as after a terminal was closed, and the log's
    file system may be full: a run goes on all the same.
    """
    line = printable(f"triptych: {message}\n")
    with contextlib.suppress(OSError):
        sys.stderr.write(line)
        sys.stderr.flush()
    if (log := _log.get()) is not None:
        # Opened for each line: of hundreds of runs, the open files would come to their limit.
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
            stream.write(line)


def say_once(message: str) -> None:
    """As say, but the same message only once."""
    said = (_log.get(), message)
    if said not in _said:
        _said.add(said)
        say(message)
