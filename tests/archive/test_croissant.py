"""An archive's tables are described as Croissant 1.0, by mlcommons.org/croissant/1.0. What is here
was also read by mlcroissant 1.1.1, its reference reader: it found no error, and every record.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.archive.sweeps import NAME
from workflow_lib.archive import croissant
from workflow_lib.records.tables import TABLES

POLARS = {
    "sc:Text": pl.String,
    "sc:Integer": pl.Int64,
    "sc:Float": pl.Float64,
    "sc:Boolean": pl.Boolean,
}


@pytest.fixture(scope="module")
def described(archive: Path) -> dict[str, Any]:
    return json.loads(croissant.place(archive).read_text(encoding="utf-8"))


def test_it_states_the_archive_and_the_dataset(described, archive):
    assert described["conformsTo"] == described["@context"]["cr"] + "1.0"
    assert described["name"].split() == ["Sweep", NAME, "on", "local"]
    whole, *tables = described["distribution"]
    assert whole["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert whole["contentUrl"] == archive.name
    assert {table["containedIn"]["@id"] for table in tables} == {whole["@id"]}


def test_its_fields_are_the_tables_columns(described, archive):
    paths = {each["@id"]: each["contentUrl"] for each in described["distribution"]}
    assert {each["@id"] for each in described["recordSet"]} == set(TABLES)
    with zipfile.ZipFile(archive) as source:
        for records in described["recordSet"]:
            (of,) = {field["source"]["fileObject"]["@id"] for field in records["field"]}
            table = pl.read_parquet_schema(io.BytesIO(source.read(paths[of])))
            fields = {
                field["source"]["extract"]["column"]: POLARS[field["dataType"]]
                for field in records["field"]
            }
            assert fields == dict(table)
            assert all(field["description"] for field in records["field"])
