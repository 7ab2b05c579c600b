"""An archive is an RO-Crate 1.2, by the rules of w3id.org/ro/crate/1.2."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.archive.sweeps import NAME, SWEEP
from workflow_lib.archive.crate import Description, Run, metadata

SPECIFICATION = "https://w3id.org/ro/crate/1.2"


@pytest.fixture(scope="module")
def payload(archive: Path) -> dict[str, int]:
    """Size in bytes of each payload file."""
    with zipfile.ZipFile(archive) as source:
        return {
            entry.filename.split("/", 2)[2]: entry.file_size
            for entry in source.infolist()
            if entry.filename.split("/", 2)[1] == "data"
        }


@pytest.fixture(scope="module")
def graph(archive: Path) -> dict[str, dict[str, Any]]:
    """The crate's entities by their ids."""
    with zipfile.ZipFile(archive) as source:
        crate = json.loads(source.read(f"{archive.stem}/data/ro-crate-metadata.json"))
    assert crate["@context"] == f"{SPECIFICATION}/context"
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    assert len(entities) == len(crate["@graph"])
    return entities


def references(entity: dict[str, Any]) -> Iterator[str]:
    for value in entity.values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                assert each.keys() == {"@id"}  # a crate is flat
                yield each["@id"]


def test_the_descriptor_and_the_root_have_what_every_crate_must_have(graph):
    descriptor, root = graph["ro-crate-metadata.json"], graph["./"]
    assert (descriptor["@type"], descriptor["about"]) == ("CreativeWork", {"@id": "./"})
    assert descriptor["conformsTo"] == {"@id": SPECIFICATION}
    assert (root["@type"], root["datePublished"]) == ("Dataset", "2026-01-31")
    assert root["name"].split() == ["Sweep", NAME, "on", "local"]
    assert root["description"].startswith(f"{SWEEP['description']}. ")
    # No licence was chosen: a text, which refers to nothing.
    assert isinstance(root["license"], str)


def test_files_exist_and_are_as_large_as_they_say(graph, payload):
    files = [entity for entity in graph.values() if entity["@type"] == "File"]
    listed = {unquote(file["@id"]): int(file["contentSize"]) for file in files}
    of_runs = {name for name in payload if name.startswith("results/cells/")}
    described_elsewhere = {*of_runs, "ro-crate-metadata.json"}
    assert listed == {n: size for n, size in payload.items() if n not in described_elsewhere}
    assert all(file["encodingFormat"] and file["description"] for file in files)


def test_runs_are_directories_that_exist(graph, payload):
    runs = [e["@id"] for e in graph.values() if e["@type"] == "Dataset" and e["@id"] != "./"]
    assert len(runs) == 6
    of_runs = {name for name in payload if name.startswith("results/cells/")}
    assert all(run.endswith("/") for run in runs)
    assert all(any(name.startswith(unquote(run)) for name in of_runs) for run in runs)
    assert all(any(name.startswith(unquote(run)) for run in runs) for name in of_runs)


def test_the_root_leads_to_all_data_and_whatever_is_referred_to_is_described(graph):
    data = {e["@id"] for e in graph.values() if e["@type"] in ("File", "Dataset")} - {"./"}
    assert {part["@id"] for part in graph["./"]["hasPart"]} == data
    referred = {reference for entity in graph.values() for reference in references(entity)}
    assert referred - graph.keys() == {SPECIFICATION}


def test_names_are_those_of_the_crates_context(graph):
    """Terms that https://w3id.org/ro/crate/1.2/context defines, of those that are used here."""
    terms = {
        *("CreateAction", "CreativeWork", "Dataset", "File", "SoftwareApplication"),
        *("about", "conformsTo", "contentSize", "dateCreated", "datePublished", "description"),
        *("encodingFormat", "endTime", "hasPart", "identifier", "instrument", "keywords"),
        *("license", "mentions", "name", "object", "result", "softwareRequirements", "startTime"),
        *("url", "version"),
    }
    used = {key for entity in graph.values() for key in entity} - {"@id", "@type"}
    assert used | {entity["@type"] for entity in graph.values()} <= terms


def test_actions_say_what_was_made_from_what(graph):
    measuring, analysing = graph["#measuring"], graph["#analysing"]
    page = f"results/sweeps/{NAME}/report.html"
    assert {"@id": f"config/sweeps/{NAME}.yaml"} in measuring["object"]
    assert set(references({"a": measuring["result"]})) < set(references(analysing))
    assert {"@id": page} in analysing["result"]
    assert graph["#triptych"]["softwareRequirements"]


def described(licence: str | None) -> dict[str, Any]:
    run = Run("local/tiny/a b%", 1, "completed", 1.7e9, 1.7e9 + 60)
    versions: dict[str, str | None] = {"triptych": "1", "commit": "abc"}
    description = Description("s", "", "local", date(2026, 1, 31), licence, [run], versions)
    crate = metadata(description, {"CITATION.cff": 1, "versions.json": 2})
    return {entity["@id"]: entity for entity in crate["@graph"]}


def test_a_chosen_licence_is_referred_to():
    own = "https://example.org/terms"
    for licence, address in (("CC-BY-4.0", "https://spdx.org/licenses/CC-BY-4.0"), (own, own)):
        graph = described(licence)
        assert graph["./"]["license"] == {"@id": address}
        assert graph[address]["name"] == licence


def test_times_are_of_the_first_and_the_last_run_and_ids_are_addresses():
    graph = described(None)
    measuring = graph["#measuring"]
    assert measuring["startTime"] == "2023-11-14T22:13:20+00:00"
    assert measuring["endTime"] == "2023-11-14T22:14:20+00:00"
    assert measuring["result"] == [{"@id": "results/cells/local/tiny/a%20b%25/run1/"}]
    assert "#analysing" not in graph  # nothing was made of it
