"""Unpacks a bag that another user may have made, and checks everything in it first."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from workflow_lib.archive.bag import (
    CHUNK_BYTES,
    DECLARATION,
    DECLARATION_NAME,
    FORMAT_LABEL,
    INFORMATION_NAME,
    MANIFEST_NAME,
    PAYLOAD,
    TAG_MANIFEST_NAME,
    ArchiveError,
)
from workflow_lib.records import bounds
from workflow_lib.records.files import ARCHIVE_FORMAT, newer
from workflow_lib.records.reading import open_file, shown
from workflow_lib.words import counted

#: how many problems one message lists at most
_LISTED = 10
_LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(.+)")
#: flags of an entry that are accepted: deflate's level, the place of its size, and a name in UTF-8
#: (section 4.4.4 of ZIP's specification)
_HARMLESS_FLAGS = 0x0002 | 0x0004 | 0x0008 | 0x0800
#: sizes of the ZIP64 end record and of its locator, which follow the list in large archives
_ZIP64_BYTES = 56 + 20
#: errors that zipfile raises for damaged files; the last of a name that is not in UTF-8
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error),
    UnicodeDecodeError,
)


@dataclass(frozen=True)
class Bag:
    """The contents of an archive: the SHA-256 of each payload file by its name in the payload, and
    the labels and values of bag-info.txt.
    """

    checksums: Mapping[str, str]
    information: Mapping[str, str]


def unpack(
    archive: Path,
    into: Path,
    wanted: Callable[[str], bool],
    maximum_bytes: float,
    replaces: bool = False,
) -> Bag:
    """Check every file of a bag, and write the wanted files of its payload below ``into``.

    ``wanted`` says for a name in the payload whether to write the file. ``into`` must not exist,
    unless ``replaces`` is true. If this raises, ``into`` is not changed.

    Raises FileNotFoundError. Raises ArchiveError if the archive is not a bag; if files are missing,
    changed, in no manifest, too many or too large; and if an entry is not a regular file below the
    bag's directory.
    """
    if not replaces and os.path.lexists(into):
        raise ArchiveError(f"{into} exists; choose a directory that does not, with --into")
    temporary = into.with_name(f".{into.name}.{os.getpid()}.tmp")
    try:
        with open_file(archive) as stream, _listed(archive, stream) as source:
            opened = _Opened(archive, source, _files(archive, source, maximum_bytes))
            information = opened.information()
            _refuse_newer(archive, information.get(FORMAT_LABEL, "1"))
            expected = opened.manifest(MANIFEST_NAME)
            payload = {name for name in opened.files if name.startswith(PAYLOAD)}
            problems = _unlike(payload, expected)
            temporary.mkdir(parents=True)
            opened.refuse_more_than_fits(temporary)
            for name in sorted(payload & expected.keys()):
                inside = name.removeprefix(PAYLOAD)
                target = temporary / inside if wanted(inside) else None
                problems += opened.copy(name, expected[name], target)
        _refuse(archive, problems)
        if replaces:
            shutil.rmtree(into)
        temporary.rename(into)
    except (*_DAMAGE, OSError) as error:
        # A damaged offset may lead before the file's beginning: seek then raises EINVAL.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            if error.filename is not None and os.fspath(error.filename) == str(temporary):
                error.filename = str(into)  # nobody has asked for the temporary one
            raise
        raise ArchiveError(f"{archive}: damaged, or no ZIP file: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Bag({name.removeprefix(PAYLOAD): expected[name] for name in expected}, information)


def _listed(archive: Path, stream: BinaryIO) -> zipfile.ZipFile:
    """Open the archive with zipfile. Checks the size of its list of files before that is read.

    Raises ArchiveError, and the errors of zipfile.
    """
    # The end record that zipfile itself reads: the list's size, its own offset, and its format.
    end_record = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
    if end_record is None:
        raise zipfile.BadZipFile("File is not a zip file")
    size, location = end_record[5], end_record[9]
    if size <= bounds.ARCHIVE_DIRECTORY_BYTES.most:
        of_zip64 = _ZIP64_BYTES if end_record[0] == b"PK\x06\x06" else 0
        stream.seek(max(0, location - size - of_zip64))
        files = stream.read(size).count(b"PK\x01\x02")
    if size > bounds.ARCHIVE_DIRECTORY_BYTES.most or files > bounds.ARCHIVE_FILES.most:
        raise ArchiveError(f"{archive}: its list of files is too long; none of ours has such a one")
    return zipfile.ZipFile(stream)


def _refuse_newer(archive: Path, stated: str) -> None:
    # int() raises ValueError for more than 4300 digits.
    number = int(stated) if stated.isdecimal() and len(stated) < 10 else shown(stated)
    if problem := newer(number, ARCHIVE_FORMAT):
        raise ArchiveError(f"{archive}: {problem}")


def _files(
    archive: Path, source: zipfile.ZipFile, maximum_bytes: float
) -> dict[str, zipfile.ZipInfo]:
    """Name below the bag's directory → entry, for all regular files.

    Raises ArchiveError for every other kind of entry, if there is not exactly one directory at the
    top, and if the files are too large.
    """
    entries = source.infolist()
    total = sum(entry.file_size for entry in entries)
    if total > maximum_bytes:
        raise ArchiveError(
            f"{archive}: {counted(len(entries), 'file')} of {total / 1e9:.1f} GB, more than "
            f"{maximum_bytes / 1e9:g} GB; where such a size is right, allow it with --maximum-gb"
        )
    packed = archive.stat().st_size
    if total > bounds.ARCHIVE_RATIO_FREE_BYTES + packed * bounds.ARCHIVE_RATIO.most:
        raise ArchiveError(
            f"{archive}: {packed / 1e6:.1f} MB that unpack to {total / 1e6:.1f} MB, over "
            f"{bounds.ARCHIVE_RATIO.most} times as much; no measurements do"
        )
    files: dict[str, zipfile.ZipInfo] = {}
    problems = []
    for entry in entries:
        inside = entry.filename.partition("/")[2]
        if problem := _why_refused(entry):
            problems.append(f"{shown(entry.filename)} {problem}")
        elif inside in files:
            problems.append(f"{shown(entry.filename)} is there twice")
        elif not entry.is_dir():
            files[inside] = entry
    directories = {entry.filename.partition("/")[0] for entry in entries}
    if len(directories) != 1:
        problems.append(f"there are {len(directories)} files and directories at its top, not one")
    _refuse(archive, problems)
    return files


def _why_refused(entry: zipfile.ZipInfo) -> str:
    """Why an entry is not accepted; empty if it is."""
    parts = entry.filename.removesuffix("/").split("/")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if entry.filename != entry.orig_filename or "\\" in entry.filename or ":" in parts[0]:
        return "is not a valid file name"
    if any(part in ("", ".", "..") for part in parts):
        return "leads out of the archive"
    if len(parts) > bounds.ARCHIVE_DEPTH.most:
        return f"lies over {bounds.ARCHIVE_DEPTH.most} directories deep"
    if kind not in (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
        return "is a link or a device"
    if not entry.is_dir() and len(parts) < 2:
        return "lies outside of the bag's directory"
    if entry.flag_bits & ~_HARMLESS_FLAGS or entry.compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):
        return "is encrypted, or compressed as this does not read it"
    return ""


@dataclass(frozen=True)
class _Opened:
    """An open archive, and its entries by their names below the bag's directory."""

    archive: Path
    source: zipfile.ZipFile
    files: Mapping[str, zipfile.ZipInfo]

    def information(self) -> dict[str, str]:
        """The labels and values of bag-info.txt. Raises ArchiveError if a tag file is wrong."""
        if self.text(DECLARATION_NAME).split() != DECLARATION.split():
            raise ArchiveError(f"{self.archive}: {DECLARATION_NAME} is not of BagIt 1.0 in UTF-8")
        expected = self.manifest(TAG_MANIFEST_NAME)
        tags = {n for n in self.files if not n.startswith(PAYLOAD) and n != TAG_MANIFEST_NAME}
        problems = _unlike(tags, expected)
        for name in sorted(tags & expected.keys()):
            problems += self.copy(name, expected[name], None)
        _refuse(self.archive, problems)
        lines = self.text(INFORMATION_NAME).splitlines()
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    def manifest(self, manifest: str) -> dict[str, str]:
        """Name → checksum, from a manifest. Raises ArchiveError for a line that is not valid."""
        checksums: dict[str, str] = {}
        for number, line in enumerate(self.text(manifest).split("\n"), start=1):
            match = _LINE.fullmatch(line)
            name = match[2] if match else ""
            for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
                name = name.replace(code, character)
            if match and name not in checksums:
                checksums[name] = match[1].lower()
            elif line:
                raise ArchiveError(
                    f"{self.archive}: line {number} of {manifest} is not the checksum and name of "
                    f"one more file: {line[:100]!r}"
                )
        return checksums

    def text(self, name: str) -> str:
        """The text of a tag file. Raises ArchiveError if it is missing, too large or not UTF-8."""
        entry = self.files.get(name)
        if entry is None:
            raise ArchiveError(
                f"{self.archive}: there is no {name}; expected a bag, as `make archive` writes it"
            )
        if entry.file_size > bounds.ARCHIVE_TAG_BYTES.most:
            raise ArchiveError(f"{self.archive}: {name} has {entry.file_size} bytes")
        try:
            return self.source.read(entry).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ArchiveError(f"{self.archive}: {name} is not UTF-8: {error}") from None

    def copy(self, name: str, expected: str, target: Path | None) -> list[str]:
        """Check a file's checksum, and write it to ``target`` if given. Returns the problems."""
        digest = hashlib.sha256()
        try:
            with self.source.open(self.files[name]) as content:
                if target is None:
                    while chunk := content.read(CHUNK_BYTES):
                        digest.update(chunk)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("xb") as sink:
                        while chunk := content.read(CHUNK_BYTES):
                            digest.update(chunk)
                            sink.write(chunk)
        except _DAMAGE as error:
            return [f"{name} is damaged: {error}"]
        changed = digest.hexdigest() != expected
        return [f"{name} was changed: its checksum is another"] if changed else []

    def refuse_more_than_fits(self, directory: Path) -> None:
        """Raise ArchiveError if the disk has no room for all files."""
        total = sum(entry.file_size for entry in self.files.values())
        free = shutil.disk_usage(directory).free
        if total > free:
            raise ArchiveError(
                f"{self.archive}: it unpacks to {total / 1e9:.1f} GB, and {free / 1e9:.1f} GB are "
                f"free in {directory.parent}; choose another place with --into"
            )


def _unlike(there: set[str], expected: Mapping[str, str]) -> list[str]:
    return [
        *(f"{name} is missing" for name in sorted(expected.keys() - there)),
        *(f"{name} is in no manifest" for name in sorted(there - expected.keys())),
    ]


def _refuse(archive: Path, problems: Iterable[str]) -> None:
    # A name may be of any length.
    lines = [problem[: 2 * bounds.VALUE_LETTERS.most] for problem in problems]
    if lines:
        more = f"; and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
        raise ArchiveError(f"{archive}: {'; '.join(lines[:_LISTED])}{more}")
