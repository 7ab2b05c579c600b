"""Digests of what archives make: a row a column of a table, a key of summaries, or a figure.

A new column then adds a row to evidence/products.csv, and changes none. A median that came out
other than before is not hidden among tables that merely have a column more.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from workflow_lib.archive.contents import is_product

#: (product, column) → archive → the start of a SHA-256. A product is all tables of one name in an
#: archive, or the summaries of its runs, or a figure; a figure has one column, without a name.
Digests = Mapping[tuple[str, str], Mapping[str, str]]

#: their JSON objects have an entry a column, which belongs to that column
_REASONS = ("missing_reasons", "missing_codes")
_LETTERS = 8


def digests(rebuilt: Path) -> Digests:
    """The digests of all products of the archives that were rebuilt into a directory."""
    hashes: dict[tuple[str, str], dict[str, hashlib._Hash]] = defaultdict(dict)
    for path in sorted(rebuilt.rglob("*")):
        archive, _, name = path.relative_to(rebuilt).as_posix().partition("/")
        if path.is_file() and is_product(name):
            for column, content in _columns(path):
                of_column = hashes[path.name, column].setdefault(archive, hashlib.sha256())
                # With the name: a value that wanders from one run to another is a change.
                of_column.update(name.encode() + b"\0" + content)
    return {
        key: {archive: value.hexdigest()[:_LETTERS] for archive, value in of_key.items()}
        for key, of_key in sorted(hashes.items())
    }


def _columns(path: Path) -> Iterator[tuple[str, bytes]]:
    """The columns of a file and their contents; none of a file that is not compared."""
    if path.suffix == ".svg":
        yield "", path.read_bytes()
    elif path.suffix == ".json":
        for name, value in json.loads(path.read_bytes()).items():
            yield name, json.dumps(value).encode()
    elif path.suffix == ".parquet":
        table = pl.read_parquet(path)
        types, values = table.schema, table.to_dict(as_series=False)
        reasons = [[json.loads(text) for text in values.pop(name, [])] for name in _REASONS]
        for name, column in values.items():
            why = [[of_row.get(name) for of_row in of_rows] for of_rows in reasons]
            yield name, json.dumps([str(types[name]), column, *why]).encode()


def write(path: Path, made: Digests) -> None:
    """Write a table: product, column, and a column of digests for each archive."""
    archives = sorted({archive for of_key in made.values() for archive in of_key})
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("product", "column", *archives))
        for key, of_key in made.items():
            writer.writerow((*key, *(of_key.get(archive, "") for archive in archives)))


def read(path: Path) -> Digests:
    """What :func:`write` wrote."""
    with path.open(encoding="utf-8", newline="") as stream:
        return {
            (row.pop("product"), row.pop("column")): {k: v for k, v in row.items() if v}
            for row in csv.DictReader(stream)
        }


def differences(before: Digests, now: Digests) -> list[str]:
    """A line for each product and column that changed, is new or is gone, with its archives."""
    lines = []
    for key in sorted(before.keys() | now.keys()):
        then, there = before.get(key, {}), now.get(key, {})
        archives: dict[str, list[str]] = defaultdict(list)
        for archive in sorted(then.keys() | there.keys()):
            if then.get(archive) != there.get(archive):
                what = (
                    "gone" if archive not in there else "new" if archive not in then else "changed"
                )
                archives[what].append(archive)
        name = ", column ".join(filter(None, key))
        lines += [f"{what}: {name} of {', '.join(names)}" for what, names in archives.items()]
    return lines
