"""An archive that was changed, damaged or made to do harm is refused, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import random
import shutil
import stat
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.texts import lacking
from workflow_lib.archive.bag import ArchiveError, manifest, write_bag
from workflow_lib.archive.unpacking import Bag, unpack

_TEXTS = {
    "config/a.yaml": "name: a\n",
    "results/cells/telemetry.csv": "time,power\n1,2\n" * 40,
    "results/50% of\nit.txt": "percent and line feed\n",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A bag of three small files."""
    path = tmp_path / "made up.zip"
    write_bag(path, {}, {}, _TEXTS, {"External-Identifier": "made-up"}, 1.7e9)
    return path


def unpacked(archive: Path, maximum_bytes: float = 1e6) -> Bag:
    return unpack(archive, archive.parent / "into", lambda name: True, maximum_bytes)


def refused(archive: Path, *named: str, maximum_bytes: float = 1e6) -> None:
    """It is refused, the message names these, and nothing of it lies anywhere."""
    before = set(archive.parent.rglob("*"))
    with pytest.raises(ArchiveError) as caught:
        unpacked(archive, maximum_bytes)
    assert set(archive.parent.rglob("*")) == before
    assert lacking(caught.value, *named) == []


def contents(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as source:
        return {name: source.read(name) for name in source.namelist()}


def written(archive: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(archive, "w") as target:
        for name, content in files.items():
            target.writestr(name, content)
    return archive


def sealed(archive: Path, files: dict[str, bytes]) -> Path:
    """Write files with manifests that are right, as whoever means harm would."""
    files = {name: content for name, content in files.items() if "manifest-" not in name}
    for name, chosen in (("manifest-sha256.txt", True), ("tagmanifest-sha256.txt", False)):
        sums = {
            path.partition("/")[2]: hashlib.sha256(content).hexdigest()
            for path, content in files.items()
            if path.startswith("made up/data/") == chosen
        }
        files[f"made up/{name}"] = manifest(sums).encode()
    return written(archive, files)


# ------------------------------------------------------------------------------------- as packed


def test_a_bag_is_unpacked_as_it_was(archive):
    bag = unpacked(archive)
    into = archive.parent / "into"
    files = [path for path in into.rglob("*") if path.is_file()]
    assert {p.relative_to(into).as_posix(): p.read_text(encoding="utf-8") for p in files} == _TEXTS
    texts = {name: text.encode() for name, text in _TEXTS.items()}
    assert bag.checksums == {n: hashlib.sha256(text).hexdigest() for n, text in texts.items()}
    assert bag.information["External-Identifier"] == "made-up"
    assert bag.information["Payload-Oxum"] == f"{sum(map(len, texts.values()))}.3"


def test_what_is_not_wanted_is_checked_and_not_written(archive):
    into = archive.parent / "into"
    unpack(archive, into, lambda name: name.startswith("config/"), 1e6)
    assert [path.name for path in into.iterdir()] == ["config"]
    shutil.rmtree(into)
    files = contents(archive)
    files["made up/data/results/cells/telemetry.csv"] += b"3,4\n"
    written(archive, files)
    with pytest.raises(ArchiveError, match=r"telemetry\.csv"):
        unpack(archive, into, lambda name: name.startswith("config/"), 1e6)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum")
def test_the_manifest_is_one_to_sha256sum(archive, tmp_path):
    files = contents(archive)
    lines = [
        line
        for line in files["made up/manifest-sha256.txt"].decode().splitlines()
        if "%" not in line  # sha256sum knows no such names
    ]
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet"],
        **{"cwd": tmp_path / "made up", "input": "\n".join(lines) + "\n"},
        **{"capture_output": True, "text": True, "check": False},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(lines) == 2


def test_a_bag_that_a_desktop_packed_again_is_still_one(archive):
    files = {"made up/": b"", "made up/data/": b"", **contents(archive)}
    assert unpacked(written(archive, dict(sorted(files.items(), reverse=True))))


def test_a_place_that_cannot_be_made_is_named_as_it_was_given(archive):
    with pytest.raises(FileNotFoundError) as caught:
        unpack(archive, Path("/proc/x"), lambda name: True, 1e9)
    assert caught.value.filename == "/proc/x"


def test_an_existing_directory_is_left_alone(archive):
    into = archive.parent / "into"
    into.mkdir()
    refused(archive, f"{into} exists", "--into")
    assert list(into.iterdir()) == []


# -------------------------------------------------------------------------------------- changed


_SUMS, _TAG_SUMS = "manifest-sha256.txt", "tagmanifest-sha256.txt"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        *(({n: b" "}, [n, "changed"]) for n in ("data/config/a.yaml", "bag-info.txt", _SUMS)),
        ({"bagit.txt": b" "}, ["bagit.txt"]),
        *(({name: None}, [name]) for name in ("bagit.txt", "bag-info.txt", _SUMS)),
        ({"fetch.txt": b"http://example.org/x 1 data/x\n"}, ["fetch.txt", "in no manifest"]),
        # All that is wrong is named at once.
        (
            {"data/config/a.yaml": None, "data/results/cells/telemetry.csv": b"better"}
            | {"data/results/more.csv": b"1"},
            ["a.yaml is missing", "telemetry.csv was changed", "more.csv is in no manifest"],
        ),
        # A line of a manifest that is none is quoted.
        *(
            ({_TAG_SUMS: f"{line}\n{line}\n".encode()}, [_TAG_SUMS, line[:60]])
            for line in ("no checksum", f"{'0' * 64}  data/config/a.yaml", f"{'0' * 63}  data/x")
        ),
    ],
)
def test_a_file_that_was_changed_removed_or_added_is_named(archive, changes, named):
    files = contents(archive)
    for name, added in changes.items():
        before = files.pop(f"made up/{name}", b"")
        if added is not None:
            files[f"made up/{name}"] = before + added
    refused(written(archive, files), *named)


def test_a_damaged_byte_is_found_wherever_it_is(archive):
    """Either the archive is refused, or what it unpacks to is what was packed (where a date, or a
    field that nobody reads, was hit). Nothing else is raised.
    """
    whole = archive.read_bytes()
    chance = random.Random(1)
    found = 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        archive.write_bytes(damaged)
        into = archive.parent / "into"
        try:
            unpacked(archive)
        except ArchiveError:
            found += 1
        else:
            for name, text in _TEXTS.items():
                assert (into / name).read_text(encoding="utf-8") == text
            shutil.rmtree(into)
    assert found > 100


def patched(content: bytes, at: int, new: bytes, name: bytes = b"") -> bytes:
    """Bytes of an archive, with others at this place of the list's entry of a file."""
    start = content.index(b"PK\x01\x02")
    while name not in content[start : start + 80]:
        start = content.index(b"PK\x01\x02", start + 4)
    return content[: start + at] + new + content[start + at + len(new) :]


@pytest.mark.parametrize("kept", [0, 10, 500, -30])
def test_a_download_that_was_cut_off_is_refused(archive, kept):
    archive.write_bytes(archive.read_bytes()[:kept])
    refused(archive, "ZIP")


@pytest.mark.parametrize(
    ("flags", "letter", "named"),
    # A name that is not in the encoding of its flag, and an encrypted file.
    [((1 << 11).to_bytes(2, "little"), b"\xaa", "ZIP"), (b"\x01", b"m", "encrypted")],
)
def test_flags_of_what_is_not_read_are_refused(archive, flags, letter, named):
    archive.write_bytes(patched(patched(archive.read_bytes(), 8, flags), 46, letter))
    refused(archive, named)


# --------------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    "name",
    [
        *("../outside.txt", "made up/data/../../outside.txt", "made up/data/./a"),
        *("made up/data//a", "/etc/outside.txt", "C:/outside.txt", "outside.txt"),
        "made up/data/..\\..\\outside.txt",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(archive, name):
    refused(sealed(archive, contents(archive) | {name: b"harm"}), repr(name))


def test_a_second_directory_at_the_top_is_refused(archive):
    refused(sealed(archive, contents(archive) | {"another/data/x": b"harm"}), " 2 ")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO])
def test_links_and_devices_are_refused(archive, kind):
    entry = zipfile.ZipInfo("made up/data/config/link")
    entry.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(archive, "a") as target:
        target.writestr(entry, "/etc/passwd")
    refused(archive, "config/link'", "link or a device")


def test_a_name_that_is_there_twice_is_refused(archive):
    with zipfile.ZipFile(archive, "a") as target, pytest.warns(UserWarning, match="Duplicate"):
        target.writestr("made up/data/config/a.yaml", "name: b\n")
    refused(archive, "config/a.yaml'", "twice")


def test_a_file_in_the_place_of_a_directory_is_refused(archive):
    sealed(archive, contents(archive) | {"made up/data/config": b"no directory"})
    with pytest.raises(OSError, match="config"):
        unpacked(archive)
    assert not (archive.parent / "into").exists()


def test_more_than_is_allowed_is_refused_before_anything_is_read(archive):
    """A megabyte of zeros is a kilobyte in the archive."""
    sealed(archive, contents(archive) | {"made up/data/zeros": bytes(1 << 20)})
    refused(archive, "0.001 GB", "--maximum-gb", maximum_bytes=1e6)
    assert unpacked(archive, maximum_bytes=2e6)


def test_more_than_the_disk_holds_is_refused(archive, monkeypatch):
    usage = shutil.disk_usage(archive.parent)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refused(archive, "0.0 GB", "--into")


def test_a_file_that_is_longer_than_it_says_is_cut_off_and_refused(tmp_path):
    """Its header has a size of 10 bytes; a thousand follow."""
    archive = tmp_path / "made up.zip"
    write_bag(archive, {}, {}, {"zeros": "0" * 1000}, {}, 1.7e9)
    archive.write_bytes(patched(archive.read_bytes(), 24, struct.pack("<I", 10), b"zeros"))
    refused(archive, "data/zeros")
