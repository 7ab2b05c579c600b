"""Handles Ctrl-C. The signal handler only counts it; threads act on it while they wait for a run.
So Ctrl-C never interrupts an operation that must be completed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_CHECK_EVERY_S = 0.5
#: how often Ctrl-C came, for all runs that this process waits for
_came = 0


class InterruptedRunError(RuntimeError):
    """The user pressed Ctrl-C. The message says what is left of the run."""


def note_sigint(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    """Count a Ctrl-C. This is a signal handler, so it must not take a lock."""
    global _came
    _came += 1


@contextmanager
def sigint_noted() -> Iterator[None]:
    """Count SIGINT meanwhile, unless this process was started with SIGINT ignored."""
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
    """Sleep. Raises InterruptedRunError once Ctrl-C has come ``times`` times."""
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
    """Raise InterruptedRunError if Ctrl-C has come ``times`` times."""
    if _came >= times:
        raise InterruptedRunError("interrupted")
