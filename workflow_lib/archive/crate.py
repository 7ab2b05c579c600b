"""Describes an archive's payload as an RO-Crate 1.2 (w3id.org/ro/crate/1.2): each file, what made
it, and its licence.

A run is described as one directory, because it may have hundreds of files. The bag's manifest lists
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from workflow_lib.archive import versions
from workflow_lib.archive.contents import CONFIGURATION, RESULTS, is_product
from workflow_lib.records.tables import TABLES
from workflow_lib.words import counted

METADATA_NAME = "ro-crate-metadata.json"

Entity = dict[str, Any]

_SPECIFICATION = "https://w3id.org/ro/crate/1.2"
_CELLS = f"{RESULTS}/cells/"
_CITATION = "CITATION.cff"
_NO_LICENCE = "Nobody chose a licence for these data: ask those who measured them."
_MEDIA_TYPES = {
    ".cff": "application/yaml",
    ".html": "text/html",
    ".json": "application/json",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".pdf": "application/pdf",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".yaml": "application/yaml",
}
_WHAT = {
    **{f"{name}.parquet": kind.rows.partition(".")[0] for name, kind in TABLES.items()},
    "plan.parquet": "The sweep's cells, with estimates; infeasible ones with the reason",
    "report.html": "Everything on one page; opens in a browser, without a network",
    "tokens.json": "A tokenised corpus that is not in here: its sources and checksum",
    "columns.md": "What every column of the tables means, with its unit",
    "files.md": "What every file means",
    "reasons.md": "Why a value of a table is null: codes and their sentences",
    _CITATION: "How to cite the software, and the study that it repeats",
    versions.NAME: "Versions of the software that made tables, figures and page",
}


@dataclass(frozen=True)
class Run:
    """A run that the archive holds. Unknown values are null."""

    cell: str
    number: int
    outcome: str | None
    started_unix_s: float | None
    ended_unix_s: float | None


@dataclass(frozen=True)
class Description:
    """The values that describe a sweep."""

    sweep: str
    text: str
    platform: str
    published: date
    #: an SPDX identifier or an address; null if none was chosen
    licence: str | None
    runs: Sequence[Run]
    versions: Mapping[str, str | None]


def metadata(description: Description, sizes: Mapping[str, int]) -> Entity:
    """The crate's JSON-LD. ``sizes`` are those of all payload files but the crate, in bytes."""
    files = [_file(name, sizes[name]) for name in sorted(sizes) if not name.startswith(_CELLS)]
    names = [file["@id"] for file in files]
    runs = [_run(run) for run in description.runs]
    licences = [_licence(description.licence)] if description.licence else []
    actions = _actions(description, names, [run["@id"] for run in runs])
    software = _software(description.versions, names)
    text = " ".join(description.text.split()).rstrip(".")
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Sweep {description.sweep} on {description.platform}",
        "description": (
            f"{text + '. ' if text else ''}Power, performance and temperatures of distributed "
            f"training: the raw files of {counted(len(runs), 'run')}, their configuration, and the "
            "tables, figures and page made from them."
        ),
        "datePublished": description.published.isoformat(),
        "license": _reference(licences[0]["@id"]) if licences else _NO_LICENCE,
        "keywords": "distributed training, energy, power, temperature, GPU",
        "hasPart": [_reference(part["@id"]) for part in (*files, *runs)],
        "mentions": [_reference(action["@id"]) for action in actions],
    }
    descriptor = {
        "@id": METADATA_NAME,
        "@type": "CreativeWork",
        "name": "RO-Crate metadata",
        "description": "What this archive holds",
        "about": _reference("./"),
        "conformsTo": _reference(_SPECIFICATION),
    }
    return {
        "@context": f"{_SPECIFICATION}/context",
        "@graph": [descriptor, root, *files, *runs, *actions, software, *licences],
    }


def _file(name: str, size: int) -> Entity:
    path = PurePosixPath(name)
    entity: Entity = {"@id": quote(name), "@type": "File", "name": name, "contentSize": str(size)}
    if path.name in _WHAT:
        entity["description"] = _WHAT[path.name]
    elif path.parts[0] == CONFIGURATION:
        entity["description"] = "Configuration of the study"
    elif path.parts[0] == "envs":
        entity["description"] = "Pinned versions of an environment"
    elif path.parent.name == "figures":
        entity["description"] = "A figure of the report"
    if media_type := _MEDIA_TYPES.get(path.suffix):
        entity["encodingFormat"] = media_type
    return entity


def _run(run: Run) -> Entity:
    directory = f"{_CELLS}{run.cell}/run{run.number}/"
    ended = "has not run" if run.outcome is None else f"ended as {run.outcome}"
    entity: Entity = {
        "@id": quote(directory),
        "@type": "Dataset",
        "name": f"Run {run.number} of {run.cell}",
        "description": (
            f"Raw files of a run that {ended}: its resolved configuration, script, environment, "
            "telemetry, steps and logs"
        ),
    }
    if run.ended_unix_s is not None:
        entity["dateCreated"] = _moment(run.ended_unix_s)
    return entity


def _licence(licence: str) -> Entity:
    address = licence if "://" in licence else f"https://spdx.org/licenses/{quote(licence)}"
    return {
        "@id": address,
        "@type": "CreativeWork",
        "name": licence,
        "description": "The licence of these data, chosen by those who measured them",
        "url": address,
    }


def _actions(description: Description, files: Sequence[str], runs: Sequence[str]) -> list[Entity]:
    """The actions that made the runs from the configuration, and the products from both."""
    products = [file for file in files if is_product(file)]
    configuration = [file for file in files if file.startswith(f"{CONFIGURATION}/")]
    started = [r.started_unix_s for r in description.runs if r.started_unix_s is not None]
    ended = [r.ended_unix_s for r in description.runs if r.ended_unix_s is not None]
    common = {"@type": "CreateAction", "instrument": _reference("#triptych")}
    measuring = {
        "@id": "#measuring",
        **common,
        "name": "Training, with telemetry beside it",
        "object": [_reference(file) for file in configuration],
        "result": [_reference(run) for run in runs],
        **({"startTime": _moment(min(started))} if started else {}),
        **({"endTime": _moment(max(ended))} if ended else {}),
    }
    analysing = {
        "@id": "#analysing",
        **common,
        "name": "Reducing runs to tables, figures and a page",
        "object": [_reference(source) for source in (*configuration, *runs)],
        "result": [_reference(product) for product in products],
    }
    return [action for action, made in ((measuring, runs), (analysing, products)) if made]


def _software(used: Mapping[str, str | None], files: Sequence[str]) -> Entity:
    """The software that made everything. CITATION.cff stands for its address, as it has none."""
    needed = [file for file in files if file == versions.NAME or file.startswith("envs/")]
    return {
        "@id": "#triptych",
        "@type": "SoftwareApplication",
        "name": "Triptych",
        "description": "Plans, runs and analyses measurements of distributed training",
        "version": used["triptych"],
        **({"url": _reference(_CITATION)} if _CITATION in files else {}),
        "softwareRequirements": [_reference(file) for file in needed],
        **({"identifier": f"commit {used['commit']}"} if used.get("commit") else {}),
    }


def _reference(identifier: str) -> Entity:
    return {"@id": identifier}


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
