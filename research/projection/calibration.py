"""Measures how far off predictions of each kind are: ``data/distances.csv``.

Rows that are shipped are predicted by the splits of ``calibration.toml``, and by three of
``splits.toml``. Groups of layouts that nobody tuned are kept as they are in the file: no shipped
row is one. They are quantiles of 1 440 runs of two campaigns of nanotron's benchmark, on 8 to 512
H100 in December 2024 and January 2025 (github.com/gkarfakis19/Rapid-LLM,
validation_scripts/huggingface_data/bench_final2_mod_add.csv). Another 324 runs took over a hundred
times what their products take at the peak, and are left out. Kinds without "stack" were predicted
from at most 500 runs of the other models of both campaigns and the shipped rows, the others from
shipped rows alone.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from tabulate import tabulate

from research.projection.layouts import assumed_chunks
from research.projection.metrics import clopper_pearson
from research.projection.predicting import Forecast, forecast
from research.projection.reading import PUBLISHED, read_published
from research.projection.splits import CALIBRATION, read_splits
from workflow_lib.projection import kinds
from workflow_lib.projection.kinds import LEVELS, Group
from workflow_lib.records.whole_files import whole_file

#: splits that calibrate
_OWN = ("series", "any-model", "release", "stack")


def measured(names: Iterable[str] = ("strong", "site", "twin", *_OWN)) -> list[Group]:
    """The groups of the shipped rows, as the splits of these names predict them."""
    runs, _ = read_published(PUBLISHED)
    runs.sort(key=lambda run: run.order)
    chunks = assumed_chunks(runs)
    found: dict[tuple[str, str], dict[int, Forecast]] = {}
    for split in (*read_splits()[0], *read_splits(CALIBRATION)[0]):
        if split.name in names:
            for fold in split.folds(runs):
                for each in forecast(fold, chunks)[0]:
                    # A row that several splits predict in one kind counts once.
                    found.setdefault((each.kind, each.group), {})[each.run.line] = each
    return [
        Group.of(*key, [row.time.distance for row in rows.values()])
        for key, rows in sorted(found.items())
    ]


def write(path: Path) -> int:
    """Measure anew and write the file; returns the number of groups."""
    kept = [group for group in kinds.groups() if group.kind.startswith(kinds.UNTUNED)]
    groups = [*measured(), *kept]
    with whole_file(path) as draft, draft.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("kind", "group", "rows", "distances"))
        for group in groups:
            told = " ".join(f"{value:g}" for value in group.distances)
            writer.writerow((group.kind, group.name, group.rows, told))
    return len(groups)


def coverage(kind: str, level: float) -> tuple[float, int]:
    """How many rows of a kind the intervals of its other groups hold, and how many there are."""
    held, rows = 0.0, 0
    for group in kinds.groups():
        if group.kind == kind:
            low, high = kinds.widths(kind, without=group.name).ends[level]
            inside = sum(low <= value <= high for value in group.distances)
            held += group.rows * inside / len(group.distances)
            rows += group.rows
    return held, rows


def describe() -> str:
    """A line for each kind that was measured, as text."""
    lines = []
    for name in dict.fromkeys(group.kind for group in kinds.groups()):
        found = kinds.widths(name)
        shares = {}
        for level in LEVELS:
            held, rows = coverage(name, level)
            low, high = clopper_pearson(round(held), rows)
            shares[f"{level:.0%} holds"] = f"{held / rows:.0%} ({low:.0%} to {high:.0%})"
        ends = {
            f"{level:.0%}, in sd": " to ".join(f"{end:+.1f}" for end in found.ends[level])
            for level in LEVELS
        }
        lines.append({"kind": name, "rows": found.rows, "groups": found.groups, **shares, **ends})
    return str(tabulate(lines, headers="keys", disable_numparse=True, tablefmt="github"))
