"""Prints messages about runs to the terminal and to their logs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from workflow_lib.safety import printable

#: the log of the run that this thread waits for
_log: ContextVar[Path | None] = ContextVar("_log", default=None)
_printed: set[tuple[Path | None, str]] = set()


@contextlib.contextmanager
def logged(log: Path) -> Iterator[None]:
    """Also write this thread's messages into the new file ``log``, if that can be written."""
    with contextlib.suppress(OSError):
        log.write_bytes(b"")
    token = _log.set(log)
    try:
        yield
    finally:
        _log.reset(token)


def say(message: str) -> None:
    """Print a line. If it cannot be written, because the terminal was closed, the log's file system
    is full or the process was started without standard error, the run goes on.
    """
    line = printable(f"triptych: {message}\n")
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(line)
            sys.stderr.flush()
    if (log := _log.get()) is not None:
        # Opened for each line: with hundreds of runs, open logs would reach the limit of files.
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
            stream.write(line)


def say_once(message: str) -> None:
    """As say, but print the same message only once for each log."""
    key = (_log.get(), message)
    if key not in _printed:
        _printed.add(key)
        say(message)
