"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from workflow_lib.records.whole_files import error_text, whole_file


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write_half(path: Path) -> None:
    """Fail with a part written."""
    with path.open("w", encoding="ascii") as stream:
        stream.write("half")
        stream.flush()
        stream.write("ü")


@pytest.mark.parametrize("durable", [False, True])
def test_readers_see_the_old_content_until_the_new_is_whole(tmp_path, durable):
    path = tmp_path / "made" / "file"
    for content in ("first", "second"):
        before = path.read_text(encoding="utf-8") if path.exists() else None
        with whole_file(path, durable=durable) as draft:
            draft.write_text(content, encoding="utf-8")
            assert draft.parent == path.parent, "a rename within a file system is at once"
            assert (path.read_text(encoding="utf-8") if path.exists() else None) == before
        assert path.read_text(encoding="utf-8") == content
        assert names(path.parent) == ["file"]


def test_what_fails_leaves_the_old_content_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(UnicodeEncodeError), whole_file(path) as draft:
        write_half(draft)
    assert path.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["file"]


def test_it_has_the_modes_that_its_writer_gave_it(tmp_path):
    mask = os.umask(0o027)
    try:
        with whole_file(tmp_path / "plain") as draft:
            draft.write_text("", encoding="utf-8")
        with whole_file(tmp_path / "script") as draft:
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o777))
    finally:
        os.umask(mask)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("plain", "script")]
    assert modes == [0o640, 0o750]


def test_content_that_shall_last_reaches_the_disk_before_its_name(tmp_path, monkeypatch):
    path, synced = tmp_path / "file", []

    def fsync(descriptor: int) -> None:
        assert not path.exists()
        synced.append(os.pread(descriptor, 100, 0))

    monkeypatch.setattr("os.fsync", fsync)
    with whole_file(path) as draft:
        draft.write_text("fleeting", encoding="utf-8")
    path.unlink()
    with whole_file(path, durable=True) as draft:
        draft.write_text("lasting", encoding="utf-8")
    assert synced == [b"lasting"]


def test_an_error_names_the_file_that_was_asked_for_and_no_draft():
    with pytest.raises(OSError, match="No such file") as caught, whole_file(Path("/proc/x")) as new:
        new.write_text("", encoding="utf-8")
    assert caught.value.filename == "/proc/x"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/a/b"),
            "/a/b: Permission denied; "
            "name a file that you may read, or a place where you may write",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/a/b"),
            "/a/b: No space left on device; make room there, or name another place",
        ),
        (FileNotFoundError("x: no such table; make it"), "x: no such table; make it"),
        (ValueError("x is 1; expected 2"), "x is 1; expected 2"),
    ],
)
def test_an_error_of_the_system_says_which_file_and_what_to_do(error, expected):
    assert error_text(error) == expected
