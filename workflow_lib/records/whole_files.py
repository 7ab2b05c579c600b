"""Writes files that readers see whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Write ``path`` through a temporary file in the same directory, whose path this yields.

    If the block succeeds, the temporary file replaces ``path``, so a reader sees the old content or
    the new. If the block raises, the temporary file is removed. The file keeps the mode that the
    block gave it. With ``durable`` the content is synced to disk first, so that this holds even
    after a crash. Creates the directory. Raises OSError.
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
