"""Writes a sampler's files beside its loop: a shared file system may take seconds to answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from workflow_lib.telemetry.files import SampleFile
from workflow_lib.telemetry.source import TelemetryError

#: rows of several files, or a sign that all before it was written
_Work = Sequence[tuple[SampleFile, bytes]] | threading.Event


class Writing:
    """A thread that writes what it is handed, in order, and then looks for the request to stop."""

    def __init__(self, first: SampleFile, stop: Path) -> None:
        """``first`` is a file that has to stay where it is; ``stop`` asks the sampler to end."""
        self._first = first
        self._stop = stop
        #: whether the request to stop was there when it was last looked for
        self.asked_to_stop = False
        self._failure: TelemetryError | None = None
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writing", daemon=True)
        self._thread.start()

    def hand_over(self, files: Sequence[SampleFile]) -> None:
        """Have the rows that wait in ``files`` written, without waiting for it.

        Raises the TelemetryError with which writing has failed before.
        """
        self._raise_failure()
        self._work.put([(file, file.take()) for file in files])

    def wait(self) -> None:
        """Wait until all that was handed over is written. Raises TelemetryError where it is not."""
        written = threading.Event()
        self._work.put(written)
        written.wait()
        self._raise_failure()

    def end(self) -> None:
        """Write what was handed over, and end the thread. Raises TelemetryError as ``wait``."""
        self._work.put(None)
        self._thread.join()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        # Woken by work alone: each look for it would cost as much as the work does.
        while (work := self._work.get()) is not None:
            if isinstance(work, threading.Event):
                work.set()
                continue
            if self._failure is None:
                self._write(work)
            # Where the file system cannot tell now, it is asked again.
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
