"""Ctrl-C, heeded where a run is waited for, so that it never interrupts what must not be torn."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

#: Ctrl-C comes from the terminal and once more from Snakemake: within this time it counts once
_SAME_S = 1.5
_LOOK_EVERY_S = 0.25


class InterruptedRunError(RuntimeError):
    """The user asked to end the run; the message says what is left of it."""


class AbandonedRunError(RuntimeError):
    """Nobody waits for the run any more; its job goes on."""


class Wishes:
    """What is wanted of a run that a thread waits for."""

    def __init__(self) -> None:
        self._came: list[float] = []
        self._abandoned = False
        self._changed = threading.Event()

    def interrupt(self) -> None:
        """Ctrl-C came."""
        self.note()
        self._changed.set()

    def abandon(self) -> None:
        """Nobody is there any more."""
        self._abandoned = True
        self._changed.set()

    def note(self) -> None:
        """As interrupt; also from a signal's handler, which must not take a lock."""
        now = time.monotonic()
        if not self._came or now - self._came[-1] > _SAME_S:
            self._came.append(now)

    def clear(self) -> None:
        """Forget that Ctrl-C came."""
        self._came.clear()

    def is_asked(self) -> bool:
        """Whether Ctrl-C came."""
        return bool(self._came)

    def check(self, asked: int) -> None:
        """Raise InterruptedRunError where Ctrl-C came ``asked`` times, and AbandonedRunError."""
        if self._abandoned:
            raise AbandonedRunError("nobody waits any more")
        if len(self._came) >= asked:
            raise InterruptedRunError("interrupted")

    def sleep(self, seconds: float) -> None:
        """Sleep, but not on when something is wished."""
        self._changed.wait(seconds)
        self._changed.clear()


#: SIGINT is the whole process's
_of_process = Wishes()
_wishes: ContextVar[Wishes | None] = ContextVar("_wishes", default=None)


def heed(wishes: Wishes) -> None:
    """Let what this thread waits for be subject to ``wishes``, and not to SIGINT."""
    _wishes.set(wishes)


@contextmanager
def heeded() -> Iterator[None]:
    """Have SIGINT noted, unless whoever started this process had it ignored."""
    usual = signal.getsignal(signal.SIGINT)
    if _wishes.get() is not None or usual in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        _of_process.clear()


def pause(seconds: float, asked: int = 1) -> None:
    """Sleep. Raises InterruptedRunError where Ctrl-C has come ``asked`` times."""
    until = time.monotonic() + seconds
    wishes = _wishes.get()
    while True:
        check(asked)
        left = until - time.monotonic()
        if left <= 0:
            return
        if wishes is None:
            time.sleep(min(left, _LOOK_EVERY_S))
        else:
            wishes.sleep(left)


def is_asked() -> bool:
    """Whether Ctrl-C has come."""
    return (_wishes.get() or _of_process).is_asked()


def check(asked: int = 1) -> None:
    """Raise InterruptedRunError where Ctrl-C has come ``asked`` times."""
    (_wishes.get() or _of_process).check(asked)


def _note(number: int, frame: FrameType | None) -> None:
    _of_process.note()
