"""Files that readers see whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Write ``path`` by way of a neighbour, whose path this yields.

    Where the block ends well, the neighbour takes the place of ``path``, whatever was there, so
    that a reader sees the old content or the new; where it raises, the neighbour is removed. Its
    modes are those that the block gave it. ``durable`` has the content reach the disk before, so
    that this holds even after a crash. Makes the directory. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        if durable:
            with draft.open("rb") as stream:
                os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
