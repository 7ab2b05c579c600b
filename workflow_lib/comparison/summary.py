"""The summary of a comparison, with labels: how many pairs there are, and which side is best by
which measure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from workflow_lib.comparison.matching import (
    BEST,
    MEANS,
    NAMED,
    OTHER_REPLICAS,
    OTHER_STAGES,
    SAME_LAYOUT,
    UNMATCHED,
    work,
)
from workflow_lib.comparison.sides import Side
from workflow_lib.comparison.verdicts import TOLD_APART
from workflow_lib.records import cell_axes
from workflow_lib.records.labels import labels as labels_of
from workflow_lib.records.measures import MEASURES, Measure
from workflow_lib.report.figures.cell_names import Row, fate, layouts_of_two, natural
from workflow_lib.report.figures.kind import by_model
from workflow_lib.report.figures.numbers import NOTHING, paired_value, significant


class Labels:
    """Labels of the cells of both sides."""

    def __init__(self, a: Side, b: Side) -> None:
        self.names = a.name, b.name
        self._cells: tuple[dict[str, Row], dict[str, Row]] = ({}, {})
        self._labels: tuple[dict[str, str], dict[str, str]] = ({}, {})
        for number, side in enumerate((a, b)):
            for _, cells in by_model(side.cells):
                for cell, label in zip(cells, labels_of(cells), strict=True):
                    self._cells[number][cell["cell"]] = cell
                    self._labels[number][cell["cell"]] = label
        every = [cell for of_side in self._cells for cell in of_side.values()]
        self._works = _names_of_works(every)

    def cell(self, row: Mapping[str, Any], end: str) -> str:
        """The label of a row's cell of side ``end``, a or b; "" if it has none."""
        cell: str | None = row[f"cell_{end}"]
        return self._labels[end == "b"][cell] if cell else ""

    def record(self, row: Mapping[str, Any], end: str) -> Row:
        """A row's cell of side ``end`` as in CELLS."""
        return self._cells[end == "b"][row[f"cell_{end}"]]

    def pair(self, row: Mapping[str, Any]) -> str:
        """A pair's layout and options; "tp2-pp16|32 mb4" if A has 16 stages and B 32."""
        if row["match"] == NAMED:
            return f"{self.cell(row, 'a')} | {self.cell(row, 'b')}"
        a, b = self.record(row, "a"), self.record(row, "b")
        words = self.cell(row, "a").partition(" ")[2]
        return f"{layouts_of_two(a, b)} {words}".strip()

    def work_of(self, row: Mapping[str, Any]) -> Hashable:
        """A key that is the same for cells of the same work."""
        return work(self.record(row, "a"))

    def work_label(self, row: Mapping[str, Any]) -> str:
        """A model, and the axes in which this work differs from others of the model."""
        return self._works[self.work_of(row)]

    def fate(self, row: Mapping[str, Any]) -> str:
        """Why a pair was not compared, in as few words as fit into a figure."""
        cells = [self.record(row, "a"), self.record(row, "b")]
        return "; ".join(
            f"{name}: {fate(cell)}"
            for name, cell in zip(self.names, cells, strict=True)
            if cell["outcome"] != "completed"
        )


def _names_of_works(cells: Sequence[Row]) -> dict[Hashable, str]:
    """Each work's model, its workload if that is not pre-training, and the other axes in which it
    differs from other works of its model."""
    named: dict[Hashable, str] = {}
    for model in dict.fromkeys(cell["model"] for cell in cells):
        works = {work(cell): cell for cell in cells if cell["model"] == model}
        differing = cell_axes.differences(list(works.values()), MEANS)
        for (key, cell), words in zip(works.items(), differing, strict=True):
            if cell["workload"] != "pretrain" and cell["workload"] not in words:
                words.insert(0, cell["workload"])
            named[key] = f"{model} ({', '.join(words)})" if words else model
    return named


Rows = Sequence[Mapping[str, Any]]

#: kind of pairs → its heading, and what the page says of it
KINDS = {
    NAMED: (
        "Named pairs",
        "Two cells that were named for a comparison. They may differ in anything.",
    ),
    SAME_LAYOUT: (
        "The same layout",
        "The same work, layout, options and protocol on both sides. They differ in where they ran, "
        "as each pair says, or in when.",
    ),
    OTHER_REPLICAS: (
        "More replicas",
        "The same model-parallel degrees and options; the data-parallel degree, and with it the "
        "number of GPUs, differs. For this reason alone throughput and power of all GPUs differ: "
        "compare those of one GPU as well.",
    ),
    OTHER_STAGES: (
        "A deeper pipeline",
        "The same tensor-, expert- and data-parallel degrees and options; the number of pipeline "
        "stages differs, for example because one side has more GPUs. For this reason alone "
        "throughput and power of all GPUs differ: compare those of one GPU as well.",
    ),
}
_ASKED = ("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_j", "temperature_mean_c")
_ASKED_OF_INFERENCE = (
    "prefill_tokens_per_s_per_gpu",
    "decode_tokens_per_s_per_gpu",
    "decode_tokens_per_j",
    "temperature_mean_c",
)


def of(rows: Rows, match: str) -> Rows:
    return [row for row in rows if row["match"] == match]


def tiles(rows: Rows) -> list[tuple[int, str]]:
    """The numbers of pairs by kind, and of contrasts by verdict, each with its words."""
    pairs = {(row["match"], row["cell_a"], row["cell_b"]) for row in rows}
    contrasts = [row for row in rows if row["match"] in KINDS and row["measure"]]
    verdicts = [row["verdict"] for row in contrasts]
    return [
        *(
            (sum(pair[0] == match for pair in pairs), words)
            for match, words in (
                (NAMED, "named pairs"),
                (SAME_LAYOUT, "pairs of the same layout"),
                (OTHER_REPLICAS, "pairs with more replicas"),
                (OTHER_STAGES, "pairs with a deeper pipeline"),
                (UNMATCHED, "cells without a partner"),
            )
            if match != NAMED or any(pair[0] == NAMED for pair in pairs)
        ),
        (sum(verdict in TOLD_APART for verdict in verdicts), "differences told apart"),
        (verdicts.count("not_told_apart"), "not told apart"),
        (verdicts.count("no_verdict"), "without a verdict"),
    ]


def by_chance(rows: Rows) -> int:
    """How many intervals of judged contrasts may miss the true value by chance alone,
    rounded up."""
    judged = (*TOLD_APART, "not_told_apart")
    missing: float = sum(
        1 - r["coverage"] for r in rows if r["match"] in KINDS and r["verdict"] in judged
    )
    return math.ceil(missing - 1e-9)


def best(rows: Rows, labels: Labels) -> list[dict[str, Any]]:
    """For each work, the contrasts of the best cells of both sides, measure by measure."""
    works: dict[str, list[dict[str, Any]]] = {}
    for row in of(rows, BEST):
        measure = MEASURES[row["measure"]]
        works.setdefault(labels.work_label(row), []).append(
            {
                "heading": measure.heading,
                "asked": row["measure"] in (*_ASKED, *_ASKED_OF_INFERENCE),
                "winner": _winner(row, measure, labels.names),
                "a": side(row, "a", measure, labels),
                "b": side(row, "b", measure, labels),
                "in_words": row["in_words"],
            }
        )
    return [{"work": work, "answers": answers} for work, answers in works.items()]


def _winner(row: Mapping[str, Any], measure: Measure, names: tuple[str, str]) -> str:
    """The name of the side that is better, or "" if that cannot be told."""
    if row["verdict"] not in TOLD_APART:
        return ""
    return names[(row["verdict"] == "a_more") != (measure.better == "most")]


def side(row: Mapping[str, Any], end: str, measure: Measure, labels: Labels) -> dict[str, Any]:
    value = row[f"value_{end}"]
    return {
        "label": labels.cell(row, end),
        "id": row[f"cell_{end}"],
        "gpus": row[f"gpus_{end}"],
        "value": NOTHING if value is None else significant(value * measure.factor),
        "number": "" if value is None else value * measure.factor,
        "unit": measure.people_unit,
        "beside": paired_value(labels.record(row, end), measure),
    }


def counts(layouts: Rows, a: Side, b: Side) -> list[dict[str, Any]]:
    """For each kind of pair and model, how often each side has more, for the main measures."""
    groups = sorted(
        {(row["match"], row["model"], row["workload"] == "inference") for row in layouts},
        key=lambda group: (list(KINDS).index(group[0]), natural(group[1]), group[2]),
    )
    lines = []
    for match, model, inference in groups:
        own = [
            row
            for row in layouts
            if (row["match"], row["model"]) == (match, model)
            and (row["workload"] == "inference") == inference
        ]
        answers = []
        for name in _ASKED_OF_INFERENCE if inference else _ASKED:
            verdicts = [row["verdict"] for row in own if row["measure"] == name]
            parts = [
                f"{a.name} {verdicts.count('a_more')}",
                f"{b.name} {verdicts.count('b_more')}",
            ]
            other = len(verdicts) - sum(verdict in TOLD_APART for verdict in verdicts)
            parts += [f"not told apart or unknown {other}"] * bool(other)
            answers.append(", ".join(parts) if verdicts else NOTHING)
        lines.append({"kind": KINDS[match][0], "model": model, "answers": answers})
    return lines
