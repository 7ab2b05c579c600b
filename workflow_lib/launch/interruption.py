"""Handles Ctrl-C and SIGTERM. The signal handlers only note them; threads act on them while they
wait for a run. So a signal never interrupts an operation that must be completed.

Ctrl-C ends every wait, and the jobs are cancelled. SIGTERM ends the waits of runs that have no job:
nothing more is submitted. Jobs go on, and so do the waits for them, except in a process of one run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

_CHECK_EVERY_S = 0.5
#: how often Ctrl-C came, and whether SIGTERM did, for all runs that this process waits for
_came = 0
_is_told_to_end = False
#: whether SIGTERM ends waits for jobs, too
_leaves_jobs = False
#: of this thread: how often Ctrl-C must come to end its waits, and whether its run has a job
_wait: ContextVar[tuple[int, bool]] = ContextVar("_wait", default=(1, False))


class InterruptedRunError(RuntimeError):
    """The user pressed Ctrl-C. The message says what is left of the run."""


class ToldToEndError(InterruptedRunError):
    """SIGTERM came: the run's job, if it has one, goes on."""


def note_sigint(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    """Count a Ctrl-C. This is a signal handler, so it must not take a lock."""
    global _came
    _came += 1


def note_sigterm(number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
    """Note a SIGTERM, as :func:`note_sigint`."""
    global _is_told_to_end
    _is_told_to_end = True


@contextmanager
def signals_noted() -> Iterator[None]:
    """Note SIGINT and SIGTERM meanwhile, except what this process was started to ignore. SIGTERM
    then ends waits for jobs, too.
    """
    global _leaves_jobs
    before, _leaves_jobs = _leaves_jobs, True
    noted = {signal.SIGINT: note_sigint, signal.SIGTERM: note_sigterm}
    usual = {number: signal.getsignal(number) for number in noted}
    for number, note in noted.items():
        if usual[number] not in (signal.SIG_IGN, None):
            signal.signal(number, note)
    try:
        yield
    finally:
        _leaves_jobs = before
        for number, handler in usual.items():
            if handler is not None:
                signal.signal(number, handler)


@contextmanager
def with_job(times: int = 1) -> Iterator[None]:
    """Meanwhile this thread's run has a job: only Ctrl-C, once it came ``times`` times, ends a wait
    for it.
    """
    token = _wait.set((times, True))
    try:
        yield
    finally:
        _wait.reset(token)


def pause(seconds: float) -> None:
    """Sleep. Raises what :func:`check` raises, at most half a second after the signal."""
    until = time.monotonic() + seconds
    while True:
        check()
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _CHECK_EVERY_S))


def is_asked() -> bool:
    """Whether Ctrl-C or SIGTERM has come."""
    return _came > 0 or _is_told_to_end


def exit_code() -> int | None:
    """The exit code after a signal, as shells give it; None if none came."""
    if _came:
        return 128 + signal.SIGINT
    return 128 + signal.SIGTERM if _is_told_to_end else None


def check() -> None:
    """Raise InterruptedRunError if Ctrl-C ends this thread's wait, ToldToEndError if SIGTERM."""
    times, has_job = _wait.get()
    if _came >= times:
        raise InterruptedRunError("interrupted")
    if _is_told_to_end and (_leaves_jobs or not has_job):
        raise ToldToEndError(
            "told to end (SIGTERM): nothing more is submitted. A job that was submitted goes on; "
            "start again to wait for it"
        )
