"""The sampler's CSV files, the thread that writes them, and the sampler's lock.

A thread writes, because a shared file system may take seconds to answer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Union

from workflow_lib.records.columns import Column
from workflow_lib.telemetry.source import TelemetryError, Value


class SampleFile:
    """A CSV file that is written in chunks of whole lines.

    Rows wait in memory until they are taken and written. So a killed sampler loses the rows since
    the last write, and leaves at most one incomplete line, the last.
    """

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        """Create the file with its header. Raises TelemetryError if it exists."""
        self._path = path
        self._names = [column.name for column in columns]
        self._pending: list[str | Mapping[str, Value | str]] = [",".join(self._names)]
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            raise TelemetryError(
                f"{path} is there already, from an earlier attempt; move that attempt's files "
                f"away (to attempts/) before the run is started again"
            ) from None

    def add(self, values: Mapping[str, Value | str]) -> None:
        """Add a row. A column without a value becomes an empty field. Text must hold no commas.

        The caller must not change ``values`` afterwards: ``take`` turns them into text, because
        that is several times faster for many rows at once.
        """
        self._pending.append(values)

    def add_lines(self, lines: Iterable[str]) -> None:
        """Add rows that are text already, with fields in the order of the columns."""
        self._pending.extend(lines)

    def take(self) -> bytes:
        """Take all waiting rows, as text for ``write``."""
        if not self._pending:
            return b""
        lines = [row if isinstance(row, str) else self._line(row) for row in self._pending]
        self._pending.clear()
        return ("\n".join(lines) + "\n").encode("ascii")

    def write(self, text: bytes) -> None:
        """Write whole lines. Raises TelemetryError if the operating system refuses."""
        chunk = memoryview(text)
        while chunk:
            try:
                chunk = chunk[os.write(self._descriptor, chunk) :]
            except OSError as error:
                raise TelemetryError(
                    f"cannot write {self._path}: {error.strerror}; free space or quota there, and "
                    "run the cell again"
                ) from None

    def check_present(self) -> None:
        """Raise TelemetryError if the path no longer leads to the file that is written.

        Writing to a deleted file gives no error.
        """
        try:
            there = self._path.stat()
        except OSError:
            there = None
        if there is None or not os.path.samestat(there, os.fstat(self._descriptor)):
            raise TelemetryError(
                f"{self._path} was removed or moved while it was written; leave a run's directory "
                "alone until its job has ended, and run the cell again"
            )

    def close(self) -> None:
        """Write the waiting rows, and close the file."""
        try:
            self.write(self.take())
        finally:
            os.close(self._descriptor)

    def _line(self, values: Mapping[str, Value | str]) -> str:
        get = values.get
        return ",".join(["" if (v := get(name)) is None else str(v) for name in self._names])


class NodeLock:
    """The lock that the sampler of one node of one run holds while it runs."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises TelemetryError with the holder's name if another process has it."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 200).decode("utf-8", "replace").strip()
            os.close(self._descriptor)
            raise TelemetryError(
                f"another sampler works here already: {holder or 'unknown'} holds {path}; "
                "one is enough, or end that one first"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            # Some parallel file systems are mounted without locks. A second sampler then still
            # fails, at the first file that it cannot create.
            print(f"telemetry: {path}: no file locks here ({error.strerror})", file=sys.stderr)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Release the lock. The file stays."""
        os.close(self._descriptor)


def leave_mark(path: Path) -> None:
    """Make an empty file in a run, for those who wait for it; nothing where there is no room, or no
    run any more.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        path.touch()


#: rows of several files, or an event to set once all work before it is done
_Work = Union[Sequence[tuple[SampleFile, bytes]], threading.Event]


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
