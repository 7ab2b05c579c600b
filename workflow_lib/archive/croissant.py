"""Describes an archive's tables as Croissant 1.0 (mlcommons.org/croissant/1.0), so that what reads
datasets finds their columns without unpacking them.

It is a file beside the archive, because it states the archive's checksum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from workflow_lib.archive.bag import PAYLOAD
from workflow_lib.records.checksums import sha256_of
from workflow_lib.records.tables import TABLES
from workflow_lib.records.whole_files import write_json

Entity = dict[str, Any]

_SPECIFICATION = "http://mlcommons.org/croissant/1.0"
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty"),
    *("fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField"),
    *("path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
    *("separator", "source", "subField", "transform"),
)
#: as the specification gives it, whose readers look for each term
_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}
_TYPES = {str: "sc:Text", int: "sc:Integer", float: "sc:Float", bool: "sc:Boolean"}


def place(archive: Path) -> Path:
    """The file beside an archive."""
    return archive.with_suffix(".croissant.json")


def write(archive: Path, crate: Entity, names: Sequence[str]) -> None:
    """Write the description of an archive that is there. ``crate`` is the dataset of its RO-Crate,
    and ``names`` are those of its payload. Raises RecordError and OSError.
    """
    tables = {
        path.stem: name
        for name in names
        if (path := PurePosixPath(name)).suffix == ".parquet"
        and path.parent.parent.name == "sweeps"
        and path.stem in TABLES
    }
    whole = {
        "@type": "cr:FileObject",
        "@id": archive.name,
        "name": archive.name,
        "contentUrl": archive.name,
        "contentSize": f"{archive.stat().st_size} B",
        "encodingFormat": "application/zip",
        "sha256": sha256_of(archive),
    }
    licence = crate["license"]  # a text, where nobody chose one
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _SPECIFICATION,
        **{key: crate[key] for key in ("name", "description", "datePublished", "keywords")},
        "license": licence["@id"] if isinstance(licence, dict) else licence,
        "distribution": [whole, *(_file(archive, tables[stem]) for stem in tables)],
        "recordSet": [_record_set(stem, tables[stem]) for stem in tables],
    }
    write_json(place(archive), described)


def _file(archive: Path, name: str) -> Entity:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": PurePosixPath(name).name,
        "contentUrl": f"{archive.stem}/{PAYLOAD}{name}",
        "containedIn": {"@id": archive.name},
        "encodingFormat": "application/x-parquet",
    }


def _record_set(stem: str, name: str) -> Entity:
    return {
        "@type": "cr:RecordSet",
        "@id": stem,
        "name": stem,
        "description": TABLES[stem].rows,
        "field": list(_fields(stem, name)),
    }


def _fields(stem: str, name: str) -> Iterator[Entity]:
    for column in TABLES[stem].columns:
        yield {
            "@type": "cr:Field",
            "@id": f"{stem}/{column.name}",
            "name": column.name,
            "description": f"{column.description}{f' ({column.unit})' if column.unit else ''}",
            "dataType": _TYPES[column.type],
            "source": {"fileObject": {"@id": name}, "extract": {"column": column.name}},
        }
