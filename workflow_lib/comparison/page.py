"""Writes the page of a comparison, in the look of the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from workflow_lib import __version__
from workflow_lib.comparison import sentences, summary
from workflow_lib.comparison.labels import Labels
from workflow_lib.comparison.matching import (
    BEST,
    UNMATCHED,
)
from workflow_lib.comparison.measures import COMPARED
from workflow_lib.comparison.sides import Side, changed_environment, emulated_sides
from workflow_lib.comparison.verdicts import TOLD_APART
from workflow_lib.records import MEASURES, ComparisonPaths, Measure, cell_axes, whole_file
from workflow_lib.report.cells import in_words
from workflow_lib.report.drawn import shown
from workflow_lib.report.figures.kind import FigureEntry
from workflow_lib.report.html import page_templates
from workflow_lib.report.numbers import NOTHING

_TEMPLATES = page_templates("workflow_lib.comparison", "workflow_lib.report")


def write_page(
    a: Side,
    b: Side,
    rows: summary.Rows,
    labels: Labels,
    entries: Sequence[FigureEntry],
    paths: ComparisonPaths,
) -> None:
    """Write ``comparison.html`` beside ``figures/`` from COMPARISON's rows."""
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
        words=[_said(row, labels) for row in rows if row["measure"] is not None],
        unfinished=[_unfinished(row, labels) for row in layouts if row["measure"] is None],
        unmatched=[_alone(row, labels) for row in rows if row["match"] == UNMATCHED],
        unvalued=_unvalued(rows),
        changed=changed_environment(a, b),
        figures=[_inline(entry, paths.figures) for entry in entries],
    )
    with whole_file(paths.page) as draft:
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
    heading, told = summary.KINDS[match]
    return {"id": match, "heading": heading, "told": told, "measures": measures, "lines": lines}


def _shown(measure: Measure, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """A contrast in the table: its estimate, its interval, whether sides are told apart, and its
    sort key."""
    if row is None or row["estimate"] is None:
        return {"text": NOTHING, "interval": "", "told": False, "value": "", "title": ""}
    low, high = row["low"], row["high"]
    if row["wide_low"] is not None:
        low, high = row["wide_low"], row["wide_high"]
    return {
        "text": sentences.signed(measure, row["estimate"]),
        "interval": sentences.interval(measure, low, high),
        "told": row["verdict"] in TOLD_APART,
        "value": row["estimate"],
        "title": row["in_words"],
    }


def _said(row: Mapping[str, Any], labels: Labels) -> dict[str, Any]:
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


def _unfinished(row: Mapping[str, Any], labels: Labels) -> dict[str, Any]:
    return {"row": row, "label": labels.pair(row), "in_words": row["in_words"]}


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
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["verdict"] in ("missing", "refused") and row["match"] in summary.KINDS:
            reason = json.loads(row["missing_reasons"])["estimate"]
            key = MEASURES[row["measure"]].heading, reason
            found[key] = found.get(key, 0) + 1
    return [(heading, reason, count) for (heading, reason), count in found.items()]


def _inline(entry: FigureEntry, directory: Path) -> dict[str, Any]:
    """A figure that has just been drawn, fit to stand in the page."""
    figure = shown(entry, directory)
    return {**figure, "svg": Markup(figure["svg"])}
