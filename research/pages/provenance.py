"""The page of where runs are from: GPUs, commits and days, as the runs recorded them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from research.pages.parts import minute
from research.pages.tables import NOTICE, document, table
from workflow_lib.records.files import read_json, read_outcome, read_record
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.results import is_profiled

NAME = "provenance.md"
#: so many digits tell our GPUs, boots and commits apart
_DIGITS = 8


@dataclass(frozen=True)
class Origin:
    """What a run recorded of where it ran, and of its code."""

    sweep: str
    #: the first digits of the UUIDs of its nodes' GPUs, and of its nodes' boots
    gpus: tuple[str, ...]
    boots: tuple[str, ...]
    commit: str
    changed: bool | None


def page(rebuilt: Path) -> str:
    """Which GPUs, hosts, commits and days the runs of the evidence are from."""
    groups: dict[Origin, list[tuple[float, Path]]] = {}
    for origin, began_unix_s, directory in _runs(rebuilt):
        groups.setdefault(origin, []).append((began_unix_s, directory))
    heads = ("sweep", "GPUs", "boot", "commit", "uncommitted changes")
    rows = []
    for origin in sorted(groups, key=lambda origin: (origin.sweep, min(groups[origin]))):
        began = [datetime.fromtimestamp(each, UTC) for each, _ in groups[origin]]
        profiled = sum(is_profiled(directory) for _, directory in groups[origin])
        changed = {True: "yes", False: "no", None: "not known"}[origin.changed]
        where = (_code(origin.sweep), _code(*origin.gpus), _code(*origin.boots) or "not recorded")
        counts = (str(len(began) - profiled), str(profiled))
        span = f"{minute(min(began))} to {minute(max(began))}"
        rows.append((*where, _code(origin.commit), changed, *counts, span))
    return document(
        NOTICE,
        "# Where are the runs from?",
        "The completed runs of each archive, by the GPUs that they had, the boot of their "
        "host, and the commit of this workflow, as the runs recorded them: GPUs by the first "
        f"{_DIGITS} digits of their UUIDs. Two sweeps that share a cell may show the same run. "
        "A commit with uncommitted changes does not identify the code. "
        "[What is missing](../../evidence/README.md) says why sweeps were interrupted.",
        table((*heads, "measured runs", "profiled runs", "begun, UTC"), rows),
    )


def _runs(rebuilt: Path) -> Iterator[tuple[Origin, float, Path]]:
    """Each completed run of each archive, and when it began."""
    for archive in sorted(rebuilt.iterdir()):
        for directory in sorted(archive.glob("results/cells/*/*/*/run*")):
            paths = RunPaths(directory)
            ended = read_outcome(paths)
            if ended is None or ended.started_unix_s is None or not paths.outcome.exists():
                continue
            environment = read_json(paths.environment)
            nodes = [
                read_record(paths.telemetry_start(node), TelemetryStart)
                for node in paths.sampled_nodes()
            ]
            uuids = (str(gpu["uuid"]) for node in nodes for gpu in node.gpus)
            origin = Origin(
                archive.name,
                _told_apart(uuid.removeprefix("GPU-") for uuid in uuids),
                _told_apart(node.boot_id for node in nodes if node.boot_id is not None),
                environment["commit"][:_DIGITS],
                environment["uncommitted_changes"],
            )
            yield origin, ended.started_unix_s, directory


def _told_apart(identities: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({identity[:_DIGITS] for identity in identities}))


def _code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)
