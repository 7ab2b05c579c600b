"""Files of ``/proc`` and ``/sys`` that are read again and again."""

from __future__ import annotations

import os
from pathlib import Path

#: one read of a file made of records, such as /proc/net/dev, returns about a page of them
_CHUNK_BYTES = 1 << 16


class KernelFile:
    """A file that stays open, as opening it by its path costs several times the read.

    The kernel writes such a file's text anew at every read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file cannot be opened."""
        self.path = path
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """The whole text. Raises OSError where the kernel declines."""
        chunks: list[bytes] = []
        offset = 0
        while chunk := self._read(offset):
            chunks.append(chunk)
            offset += len(chunk)
        return b"".join(chunks)

    def read_start(self) -> bytes:
        """What one read returns: all of a file of sysfs. Raises OSError as ``read`` does."""
        return self._read(0)

    def number(self) -> int:
        """The whole number that is all of the file. Raises OSError, or ValueError for a text."""
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
            # A driver that was loaded anew has another file under the same path.
            self.close()
            raise
