"""The sampler's CSV files, which are written in whole lines, and the sampler's lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from workflow_lib.records import Column
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
