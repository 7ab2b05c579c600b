"""Takes slow readings in a thread, because they take too long for the sampler's loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from workflow_lib.telemetry.source import UnreadableError

Reading = Mapping[str, float | UnreadableError]


class Background:
    """Calls ``read`` in a thread of its own, at most once in ``period_s``.

    A call begins only when ``latest`` asks for it, so the thread rests while the sampler pauses.
    """

    def __init__(self, read: Callable[[], Reading], period_s: float) -> None:
        self._read = read
        self._period_s = period_s
        self._due_s = float("-inf")
        self._done: queue.SimpleQueue[Reading] = queue.SimpleQueue()
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._waiting = False
        # A daemon, so that a call that hangs does not keep the sampler from ending.
        self._thread = threading.Thread(target=self._work, name="slow readings", daemon=True)
        self._thread.start()

    def latest(self, now_s: float) -> Reading:
        """The reading that ended since the last call; empty if none did. Each is returned once.

        Begins the next call if it is due. ``now_s`` is the time of a monotonic clock.
        """
        try:
            values: Reading = self._done.get_nowait()
            self._waiting = False
        except queue.Empty:
            values = {}
        if now_s >= self._due_s and not self._waiting:
            self._due_s = now_s + self._period_s
            self._waiting = True
            self._wanted.put(True)
        return values

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread after the call that is under way. Wait for that at most ``timeout_s``."""
        self._wanted.put(False)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while self._wanted.get():
            self._done.put(self._read())
