"""Compares two sweeps: reads their tables, writes the table, the figures and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib import __version__
from workflow_lib.comparison import host_effects, ratio_figure, sentences, summary
from workflow_lib.comparison.matching import (
    BEST,
    UNMATCHED,
    best_pairs,
    check_matched,
    layout_pairs,
    named_pairs,
)
from workflow_lib.comparison.measures import COMPARED
from workflow_lib.comparison.ratio_figure import Line
from workflow_lib.comparison.sensors import Errors
from workflow_lib.comparison.sides import Side, changed_environment, emulated_sides, read_sides
from workflow_lib.comparison.summary import Labels
from workflow_lib.comparison.verdicts import TOLD_APART, rows
from workflow_lib.records import cell_axes
from workflow_lib.records.checksums import write_checksums
from workflow_lib.records.measures import MEASURES, Measure
from workflow_lib.records.paths import ComparisonPaths
from workflow_lib.records.reasons import Reason
from workflow_lib.records.verdict_tables import COMPARISON
from workflow_lib.records.whole_files import whole_file
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import in_words
from workflow_lib.report.figures.embedding import drawn_for_page
from workflow_lib.report.figures.html import page_templates
from workflow_lib.report.figures.kind import FigureEntry
from workflow_lib.report.figures.numbers import NOTHING
from workflow_lib.table_files import table, write_table


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
    compared = rows(pairs, side_a, side_b)
    labels = Labels(side_a, side_b)
    entries = _figures(compared, labels)
    paths = ComparisonPaths(output)
    write_table(table(compared, COMPARISON), paths.table)
    paths.figures.mkdir(exist_ok=True)
    figures = drawn_for_page(entries, paths.figures)
    drawn = [paths.figures / f"{entry.stem}.{kind}" for entry in entries for kind in style.FORMATS]
    _forget_others(paths.figures, drawn)
    write_page(side_a, side_b, compared, labels, figures, paths.page)
    write_checksums(paths.checksums, (paths.table, paths.page, *drawn))
    return paths.page


def _figures(compared: Sequence[Mapping[str, Any]], labels: Labels) -> list[FigureEntry]:
    """The figures: one of the best cells over all models, and one for each kind of
    pair and model."""
    lines: dict[tuple[str, str], dict[object, Line]] = {}
    for row in compared:
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


def _forget_others(directory: Path, drawn: Sequence[Path]) -> None:
    """Remove figures of an earlier comparison that do not belong to this one."""
    for path in directory.iterdir():
        if path.suffix.lstrip(".") in style.FORMATS and path not in drawn:
            path.unlink()


_TEMPLATES = page_templates("workflow_lib.comparison", "workflow_lib.report")


def write_page(
    a: Side,
    b: Side,
    rows: summary.Rows,
    labels: Labels,
    figures: Sequence[Mapping[str, Any]],
    page: Path,
) -> None:
    """Write the page from COMPARISON's rows, with what :func:`drawn_for_page` gave."""
    layouts = [row for row in rows if row["match"] in summary.KINDS]
    text = _TEMPLATES.get_template("comparison.html.j2").render(
        version=__version__,
        a=a,
        b=b,
        simulated=any(row["simulated"] for row in rows),
        emulated=cell_axes.emulated_in_words(emulated_sides(rows)),
        tiles=summary.tiles(rows),
        by_chance=summary.by_chance(rows),
        best=summary.best(rows, labels),
        counts=summary.counts(layouts, a, b),
        kinds=[
            _kind(match, layouts, labels) for match in summary.KINDS if summary.of(layouts, match)
        ],
        words=[_with_values(row, labels) for row in rows if row["measure"] is not None],
        unfinished=[
            {"row": row, "label": labels.pair(row), "in_words": row["in_words"]}
            for row in layouts
            if row["measure"] is None
        ],
        unmatched=[_alone(row, labels) for row in rows if row["match"] == UNMATCHED],
        unvalued=_unvalued(rows),
        changed=changed_environment(a, b),
        figures=figures,
        licence=sentences.LICENCE,
        hosts_percent=f"{100 * host_effects.of_ratio():g}",
        hosts_c=f"{host_effects.of_temperature():g}",
    )
    with whole_file(page) as draft:
        draft.write_text(text, encoding="utf-8")


def _kind(match: str, layouts: summary.Rows, labels: Labels) -> dict[str, Any]:
    """The table of one kind of pairs: a line for each pair, a column for each measure
    with a value."""
    own = summary.of(layouts, match)
    known = {row["measure"] for row in own if row["estimate"] is not None}
    measures = [measure for measure in COMPARED if measure.name in known]
    pairs: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in own:
        if row["measure"] is not None:
            pairs.setdefault((row["cell_a"], row["cell_b"]), {})[row["measure"]] = row
    lines = []
    for of_pair in pairs.values():
        one = next(iter(of_pair.values()))
        cells = [_shown(measure, of_pair.get(measure.name)) for measure in measures]
        lines.append({"row": one, "label": labels.pair(one), "cells": cells})
    heading, text = summary.KINDS[match]
    return {"id": match, "heading": heading, "text": text, "measures": measures, "lines": lines}


def _shown(measure: Measure, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """A contrast in the table: its estimate, its interval, whether sides are told apart, and its
    sort key."""
    if row is None or row["estimate"] is None:
        return {"text": NOTHING, "interval": "", "told_apart": False, "value": "", "title": ""}
    low, high = row["low"], row["high"]
    if row["wide_low"] is not None:
        low, high = row["wide_low"], row["wide_high"]
    return {
        "text": sentences.signed(measure, row["estimate"]),
        "interval": sentences.interval(measure, low, high),
        "told_apart": row["verdict"] in TOLD_APART,
        "value": row["estimate"],
        "title": row["in_words"],
    }


def _with_values(row: Mapping[str, Any], labels: Labels) -> dict[str, Any]:
    """A contrast in words, with both values."""
    measure = MEASURES[row["measure"]]
    return {
        "pair": labels.work_label(row) if row["match"] == BEST else labels.pair(row),
        "model": row["model"],
        "kind": "Best cells" if row["match"] == BEST else summary.KINDS[row["match"]][0],
        "heading": measure.heading,
        "a": summary.side(row, "a", measure, labels),
        "b": summary.side(row, "b", measure, labels),
        "in_words": row["in_words"],
    }


def _alone(row: Mapping[str, Any], labels: Labels) -> dict[str, Any]:
    end = "a" if row["cell_a"] else "b"
    cell = labels.record(row, end)
    return {
        "side": labels.names[end == "b"],
        "row": cell,
        "label": labels.cell(row, end),
        "outcome": in_words(cell["outcome"]),
        "cause": cell["cause"] or "",
        "reason": row["in_words"].partition(": ")[2],
    }


def _unvalued(rows: summary.Rows) -> list[tuple[str, str, int]]:
    """Measures without a contrast, the reason, and the number of pairs."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["verdict"] in ("missing", "refused") and row["match"] in summary.KINDS:
            reason = Reason.of_column(row, "estimate")
            key = MEASURES[row["measure"]].heading, reason
            counts[key] = counts.get(key, 0) + 1
    return [(heading, reason, count) for (heading, reason), count in counts.items()]
