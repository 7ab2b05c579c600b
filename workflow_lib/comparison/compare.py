"""Compares two sweeps: reads their tables, writes the table, the figures and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib.analysis.tables import table, write_table
from workflow_lib.comparison import ratio_figure
from workflow_lib.comparison.labels import Labels
from workflow_lib.comparison.matching import (
    BEST,
    UNMATCHED,
    best_pairs,
    check_matched,
    layout_pairs,
    named_pairs,
)
from workflow_lib.comparison.page import write_page
from workflow_lib.comparison.ratio_figure import Line
from workflow_lib.comparison.sensors import Errors
from workflow_lib.comparison.sides import read_sides
from workflow_lib.comparison.verdicts import rows
from workflow_lib.records import COMPARISON, ComparisonPaths, write_checksums
from workflow_lib.report.figures import style
from workflow_lib.report.figures.kind import FigureEntry


def compare(
    a: Path,
    b: Path,
    output: Path,
    names: Sequence[str] | None = None,
    asked: Sequence[Sequence[str]] = (),
    errors: Errors | None = None,
) -> Path:
    """Write ``comparison.parquet``, ``figures/`` and ``comparison.html``; returns the page's path.

    ``a`` and ``b`` are the directories of two sweeps with their tables. ``asked`` holds pairs of
    parts of cell ids; these pairs are compared besides those that correspond. ``errors`` are what
    meters showed of sensors of power. Raises FileNotFoundError if a table is missing, and
    RecordError if one is damaged or no cell of A corresponds to one of B.
    """
    side_a, side_b = read_sides(a, b, names, errors)
    cells = side_a.cells, side_b.cells
    pairs = [*named_pairs(*cells, asked), *layout_pairs(*cells), *best_pairs(*cells)]
    check_matched(pairs, *cells)
    found = rows(pairs, side_a, side_b)
    labels = Labels(side_a, side_b)
    entries = _figures(found, labels)
    paths = ComparisonPaths(output)
    write_table(table(found, COMPARISON), paths.table)
    paths.figures.mkdir(exist_ok=True)
    drawn = []
    for entry in entries:
        with style.styled(entry.stem):
            drawn += style.save(entry.draw(), paths.figures / entry.stem)
    _forget_others(paths.figures, entries)
    write_page(side_a, side_b, found, labels, entries, paths)
    write_checksums(paths.checksums, (paths.table, paths.page, *drawn))
    return paths.page


def _figures(found: Sequence[Mapping[str, Any]], labels: Labels) -> list[FigureEntry]:
    """The figures: one of the best cells over all models, and one for each kind of
    pair and model."""
    lines: dict[tuple[str, str], dict[object, Line]] = {}
    for row in found:
        if row["match"] == UNMATCHED:
            continue
        if row["match"] == BEST:
            group: tuple[str, str] = (BEST, "Best cells")
            key: object = labels.work_of(row)
            label = labels.work_label(row)
        else:
            group, key = (row["match"], row["model"]), (row["cell_a"], row["cell_b"])
            label = labels.pair(row)
        line = lines.setdefault(group, {}).setdefault(key, Line(label))
        if row["measure"] is None:
            line.fate = labels.fate(row)
        else:
            line.rows[row["measure"]] = row
    ordered = sorted(lines.items(), key=lambda item: item[0][0] != BEST)
    return [
        entry
        for (match, model), of_group in ordered
        for entry in ratio_figure.entries(match, model, list(of_group.values()), labels.names)
    ]


def _forget_others(directory: Path, entries: Sequence[FigureEntry]) -> None:
    """Remove figures of an earlier comparison that do not belong to this one."""
    stems = {entry.stem for entry in entries}
    for path in directory.iterdir():
        if path.suffix.lstrip(".") in style.FORMATS and path.stem not in stems:
            path.unlink()
