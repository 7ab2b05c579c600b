"""Reads files of ``/proc`` and ``/sys`` repeatedly."""

from __future__ import annotations

import os
from pathlib import Path

#: one read of a file made of records, such as /proc/net/dev, returns about a page of them
_CHUNK_BYTES = 1 << 16


class KernelFile:
    """A file that stays open, because opening it takes several times as long as reading it.

    At every read from the beginning, the kernel writes the file's text anew.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be opened."""
        self.path = path
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """The whole text. Raises OSError if the kernel refuses."""
        chunks: list[bytes] = []
        offset = 0
        while chunk := self._read(offset):
            chunks.append(chunk)
            offset += len(chunk)
        return b"".join(chunks)

    def read_start(self) -> bytes:
        """The text that one read returns, which is all of a file of sysfs. Raises OSError."""
        return self._read(0)

    def number(self) -> int:
        """The whole number that the file holds. Raises OSError; ValueError if it holds none."""
        return int(self._read(0))

    def close(self) -> None:
        """Close it; a later read opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self, offset: int) -> bytes:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(self._descriptor, _CHUNK_BYTES, offset)
        except OSError:
            # After a driver was reloaded, the path leads to a new file: open that the next time.
            self.close()
            raise
