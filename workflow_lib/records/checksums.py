"""Checksums of the files that a stage made. They show damage that modification times do not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError, open_file, read_bytes
from workflow_lib.records.whole_files import whole_file

_BLOCK_BYTES = 1 << 20


def write_checksums(path: Path, made: Iterable[Path]) -> None:
    """Write the SHA-256 of the files ``made`` into ``path``. They must lie below its directory.

    ``sha256sum --check``, run in that directory, reads the file. It is written after the files, so
    if a stage is killed before that, files and checksums do not agree. Raises OSError.
    """
    names = sorted((file.relative_to(path.parent).as_posix(), file) for file in made)
    text = "".join(f"{sha256_of(file)}  {name}\n" for name, file in names)
    with whole_file(path, durable=True) as draft:
        draft.write_text(text, encoding="utf-8")


def damaged(path: Path, made: Iterable[Path]) -> list[Path]:
    """Which files were changed since ``path`` was written, or are missing, sorted by name.

    ``made`` are the files that may exist. An existing one that ``path`` does not name counts as
    damaged, because ``path`` itself may be damaged. If ``path`` does not exist, because an earlier
    version made the files, no file counts as damaged. Nor does a file that this user may not read.
    """
    if not path.exists():
        return []
    sums = _stated(path)
    there = {file.relative_to(path.parent).as_posix(): file for file in made if file.exists()}
    gone = {name: path.parent / name for name in sums.keys() - there.keys()}
    wrong = {name: file for name, file in there.items() if not _is(file, sums.get(name))}
    return [file for _, file in sorted({**gone, **wrong}.items())]


def _stated(path: Path) -> dict[str, str]:
    """File name → SHA-256, as far as the checksum file can be read."""
    try:
        lines = read_bytes(path, bounds.RECORD_BYTES).decode("utf-8", "replace").splitlines()
    except RecordError:
        return {}
    pairs = (line.partition("  ") for line in lines)
    # This module never writes a name that leads out of the directory.
    return {
        name: digest for digest, _, name in pairs if name and ".." not in name and name[0] != "/"
    }


def _is(path: Path, digest: str | None) -> bool:
    """Whether a file has the checksum ``digest``; False if it cannot be read from disk."""
    try:
        return digest == sha256_of(path)
    except PermissionError:
        return True
    except (RecordError, OSError):
        return False


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits. Raises RecordError and OSError."""
    digest = hashlib.sha256()
    with open_file(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
