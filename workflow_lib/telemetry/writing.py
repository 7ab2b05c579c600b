"""Writes a sampler's files in a thread, because a shared file system may take seconds to answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from workflow_lib.telemetry.files import SampleFile
from workflow_lib.telemetry.source import TelemetryError

#: rows of several files, or an event to set once all work before it is done
_Work = Sequence[tuple[SampleFile, bytes]] | threading.Event


class Writing:
    """A thread that writes rows in the order of their arrival. After each write it checks for the
    request to stop.
    """

    def __init__(self, first: SampleFile, stop: Path) -> None:
        """``first`` is a file that must not be removed or moved. The existence of the file ``stop``
        asks the sampler to end.
        """
        self._first = first
        self._stop = stop
        #: whether the file ``stop`` existed at the last check
        self.asked_to_stop = False
        self._failure: TelemetryError | None = None
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writing", daemon=True)
        self._thread.start()

    def hand_over(self, files: Sequence[SampleFile]) -> None:
        """Give the waiting rows of ``files`` to the thread, and return at once.

        Raises the TelemetryError of an earlier write that failed.
        """
        self._raise_failure()
        self._work.put([(file, file.take()) for file in files])

    def wait(self) -> None:
        """Wait until all rows that were handed over are written. Raises TelemetryError if that
        fails.
        """
        written = threading.Event()
        self._work.put(written)
        written.wait()
        self._raise_failure()

    def end(self) -> None:
        """Write all rows that were handed over, and end the thread. Raises TelemetryError."""
        self._work.put(None)
        self._thread.join()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        # The thread wakes only for work: polling would cost as much as the work itself.
        while (work := self._work.get()) is not None:
            if isinstance(work, threading.Event):
                work.set()
                continue
            if self._failure is None:
                self._write(work)
            # If the file system does not answer now, the next work checks again.
            with contextlib.suppress(OSError):
                self.asked_to_stop = self._stop.exists()

    def _write(self, rows: Sequence[tuple[SampleFile, bytes]]) -> None:
        try:
            for file, text in rows:
                file.write(text)
                if file is self._first:
                    file.check_present()
        except TelemetryError as error:
            self._failure = error
        except OSError as error:
            self._failure = TelemetryError(f"cannot write telemetry: {error}")
