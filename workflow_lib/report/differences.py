"""What tells two cells apart whose labels do so by a digest alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workflow_lib.records import RecordError, RunPaths, read_json
from workflow_lib.report.cells import Row, digest
from workflow_lib.report.environments import flat
from workflow_lib.results import run_directory


def differences(cells: Sequence[Row], labels: Sequence[str], results: Path) -> list[str]:
    """A sentence on each cell that is labelled by its digest, from the cells' own records.

    "tp1 1a2b3c (gpt3 on h200): training.seed 1". A cell that has no record yet is left out, and so
    is one that none is left to be compared with. Raises RecordError where a record is damaged.
    """
    groups: dict[tuple[str, str, str], list[tuple[str, dict[str, Any]]]] = {}
    for cell, label in zip(cells, labels, strict=True):
        path = RunPaths(run_directory(results, cell["cell"], 1)).cell
        if label.endswith(f" {digest(cell)}") and path.is_file():
            record = read_json(path)
            if not isinstance(record, dict):
                raise RecordError(f"{path}: expected the record of a cell, an object")
            alike = cell["platform"], cell["model"], label.removesuffix(digest(cell))
            values = {key: value for key, value in flat(record) if key != "id"}
            groups.setdefault(alike, []).append((label, values))
    sentences = []
    for (platform, model, _), members in groups.items():
        keys = sorted({key for _, values in members for key in values})
        differing = [key for key in keys if len({str(v.get(key)) for _, v in members}) > 1]
        for label, values in members:
            told = ", ".join(f"{key} {values.get(key, 'none')}" for key in differing)
            if told:
                sentences.append(f"{label} ({model} on {platform}): {told}")
    return sentences
