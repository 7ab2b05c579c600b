"""What a stage made, each file with its SHA-256: damage shows that no modification time tells."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError, open_file, read_bytes
from workflow_lib.records.whole_files import whole_file

_BLOCK_BYTES = 1 << 20


def write_checksums(path: Path, made: Iterable[Path]) -> None:
    """Write ``path``: the SHA-256 of files that were made from others, and lie below its directory.

    ``sha256sum --check`` reads it there. It is written after the files, so that a stage
    that is killed between them leaves what does not agree. Raises OSError.
    """
    names = sorted((each.relative_to(path.parent).as_posix(), each) for each in made)
    text = "".join(f"{_sha256(each)}  {name}\n" for name, each in names)
    with whole_file(path, durable=True) as draft:
        draft.write_text(text, encoding="utf-8")


def damaged(path: Path, made: Iterable[Path]) -> list[Path]:
    """Which of the files that ``path`` is about are not as they were made, or are gone, in order.

    ``made`` are those that may be there; one that ``path`` does not name counts as damaged, as
    ``path`` may be damaged itself. Where there is no such file, which earlier versions did not
    write, nothing is known to be damaged; nor of a file that this user may not read.
    """
    if not path.exists():
        return []
    told = _told(path)
    there = {each.relative_to(path.parent).as_posix(): each for each in made if each.exists()}
    gone = {name: path.parent / name for name in told.keys() - there.keys()}
    wrong = {name: each for name, each in there.items() if not _is(each, told.get(name))}
    return [each for _, each in sorted({**gone, **wrong}.items())]


def _told(path: Path) -> dict[str, str]:
    """The SHA-256 by file name; of a damaged file what can be read."""
    try:
        lines = read_bytes(path, bounds.RECORD_BYTES).decode("utf-8", "replace").splitlines()
    except RecordError:
        return {}
    pairs = (line.partition("  ") for line in lines)
    # A name that leads elsewhere was not written here.
    return {name: told for told, _, name in pairs if name and ".." not in name and name[0] != "/"}


def _is(path: Path, told: str | None) -> bool:
    """Whether a file is as it was made; what the disk does not give back is not."""
    try:
        return told == _sha256(path)
    except PermissionError:
        return True
    except (RecordError, OSError):
        return False


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
