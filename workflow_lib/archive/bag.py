"""BagIt bags (RFC 8493) in one ZIP file: a payload in ``data/``, and the SHA-256 of every file.

The same payload gives the same bytes: names are sorted, all files have one date and no owner. The
format is ZIP, because every desktop opens it, one file can be read out of many gigabytes, and its
list of files tells all sizes.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from workflow_lib.records import bounds
from workflow_lib.records.whole_files import whole_file
from workflow_lib.safety import printable

DECLARATION_NAME = "bagit.txt"
INFORMATION_NAME = "bag-info.txt"
MANIFEST_NAME = "manifest-sha256.txt"
TAG_MANIFEST_NAME = "tagmanifest-sha256.txt"
#: label of the archive's format number in bag-info.txt
FORMAT_LABEL = "Triptych-Format"
PAYLOAD = "data/"
DECLARATION = "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
CHUNK_BYTES = 1 << 20

#: files that deflating does not make smaller
_COMPRESSED = (".gz", ".parquet", ".pdf", ".png", ".zip")
#: level of deflate: telemetry gets a tenth larger than at zlib's default of 6, in a third of the
#: time
_COMPRESSION = 4
#: the first date that a ZIP file can hold
_EARLIEST = (1980, 1, 1, 0, 0, 0)


class ArchiveError(ValueError):
    """An archive, or a file that is to be packed, is not valid. The message is for the user."""

    def __init__(self, message: str) -> None:
        """``message`` may quote file names, so characters that cannot be printed are escaped."""
        super().__init__(printable(message, bounds.MESSAGE_LETTERS.most))


def write_bag(
    archive: Path,
    files: Mapping[str, Path],
    sizes: Mapping[str, int],
    texts: Mapping[str, str],
    information: Mapping[str, str],
    moment_unix_s: float,
) -> None:
    """Write a bag whose directory is named after ``archive``, whole or not at all.

    ``files`` maps names in the payload to regular files, and ``sizes`` to their sizes in bytes.
    ``texts`` maps names in the payload to further contents. ``information`` goes into bag-info.txt.
    ``moment_unix_s`` is the date of every file. Raises ArchiveError if a file's size has changed.
    """
    labelled = {
        **information,
        "Bag-Size": _readable(sum(sizes.values())),
        "Payload-Oxum": _oxum(sizes, texts),
    }
    tags = {
        DECLARATION_NAME: DECLARATION,
        INFORMATION_NAME: "".join(
            f"{label}: {' '.join(value.split())}\n" for label, value in labelled.items()
        ),
    }
    with whole_file(archive) as draft, zipfile.ZipFile(draft, "w") as target:
        bag = _Bag(target, archive.stem, moment_unix_s)
        checksums = {}
        for name in sorted({*files, *texts}):
            if name in texts:
                checksums[PAYLOAD + name] = bag.add_text(PAYLOAD + name, texts[name])
            else:
                with files[name].open("rb") as source:
                    checksums[PAYLOAD + name] = bag.add(PAYLOAD + name, source, sizes[name])
        tags[MANIFEST_NAME] = manifest(checksums)
        tag_checksums = {name: bag.add_text(name, text) for name, text in tags.items()}
        bag.add_text(TAG_MANIFEST_NAME, manifest(tag_checksums))


def manifest(checksums: Mapping[str, str]) -> str:
    """A manifest's lines, sorted by name."""
    return "".join(f"{checksums[name]}  {_encoded(name)}\n" for name in sorted(checksums))


def _encoded(name: str) -> str:
    """A name as it is written in manifests (RFC 8493, section 2.1.3)."""
    return name.replace("%", "%25").replace("\n", "%0A").replace("\r", "%0D")


class _Bag:
    """Writes files into a bag's directory in a ZIP file."""

    def __init__(self, target: zipfile.ZipFile, directory: str, moment_unix_s: float) -> None:
        self._target = target
        self._directory = directory
        moment = datetime.fromtimestamp(moment_unix_s, UTC)
        self._date = max(_EARLIEST, moment.timetuple()[:6])

    def add_text(self, name: str, text: str) -> str:
        content = text.encode("utf-8")
        return self.add(name, io.BytesIO(content), len(content))

    def add(self, name: str, source: BinaryIO, size: int) -> str:
        """Copy a file of ``size`` bytes. Returns its SHA-256 in hexadecimal."""
        entry = zipfile.ZipInfo(f"{self._directory}/{name}", self._date)
        entry.create_system = 3  # Unix, whichever machine this is
        entry.external_attr = 0o100644 << 16
        entry.compress_type = (
            zipfile.ZIP_STORED if name.endswith(_COMPRESSED) else zipfile.ZIP_DEFLATED
        )
        # The public name, compress_level, exists since Python 3.13.
        entry._compresslevel = _COMPRESSION  # type: ignore[attr-defined]
        entry.file_size = size  # so that large files get large headers
        digest, copied = hashlib.sha256(), 0
        with self._target.open(entry, "w") as sink:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                copied += len(chunk)
                if copied <= size:
                    sink.write(chunk)
        if copied != size:
            raise ArchiveError(
                f"{name} held {size} bytes and then {copied}: it is still being written; pack when "
                "all has ended"
            )
        return digest.hexdigest()


def _oxum(sizes: Mapping[str, int], texts: Mapping[str, str]) -> str:
    """The value of Payload-Oxum: "<bytes>.<files>" of the payload."""
    of_texts = sum(len(text.encode("utf-8")) for text in texts.values())
    return f"{sum(sizes.values()) + of_texts}.{len(sizes) + len(texts)}"


def _readable(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"
