"""Ctrl-C is noted when it comes, and acted on only where a run is waited for, so that it never
interrupts what must be done as a whole.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_CHECK_EVERY_S = 0.5
#: how often Ctrl-C came. It is for all runs that this process waits for
_came = 0


class InterruptedRunError(RuntimeError):
    """The user asked to end the run; the message says what is left of it."""


def note_sigint(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    """Ctrl-C came. A signal's handler, which must not take a lock."""
    global _came
    _came += 1


@contextmanager
def sigint_noted() -> Iterator[None]:
    """Note SIGINT, unless whoever started this process had it ignored."""
    usual = signal.getsignal(signal.SIGINT)
    if usual in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, note_sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def pause(seconds: float, times: int = 1) -> None:
    """Sleep. Raises InterruptedRunError where Ctrl-C has come ``times`` times."""
    until = time.monotonic() + seconds
    while True:
        check(times)
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _CHECK_EVERY_S))


def is_asked() -> bool:
    """Whether Ctrl-C has come."""
    return _came > 0


def check(times: int = 1) -> None:
    """Raise InterruptedRunError where Ctrl-C has come ``times`` times."""
    if _came >= times:
        raise InterruptedRunError("interrupted")
