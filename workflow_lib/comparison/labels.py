"""What cells and pairs are called, in figures and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workflow_lib.comparison.matching import NAMED, work
from workflow_lib.comparison.sides import Side
from workflow_lib.report.cells import Row, labels
from workflow_lib.report.entry import by_model
from workflow_lib.report.short_names import fate, short_layout


class Labels:
    """Labels of the cells of both sides."""

    def __init__(self, a: Side, b: Side) -> None:
        self.names = a.name, b.name
        self._cells: tuple[dict[str, Row], dict[str, Row]] = ({}, {})
        self._labels: tuple[dict[str, str], dict[str, str]] = ({}, {})
        for number, side in enumerate((a, b)):
            for _, cells in by_model(side.cells):
                for cell, label in zip(cells, labels(cells), strict=True):
                    self._cells[number][cell["cell"]] = cell
                    self._labels[number][cell["cell"]] = label
        # What tells works apart, where a sweep has several of one model and workload.
        works = {work(cell) for cells in self._cells for cell in cells.values()}
        self._telling = [place for place in range(2, 5) if len({w[place] for w in works}) > 1]

    def cell(self, row: Mapping[str, Any], end: str) -> str:
        """The label of a row's cell of side ``end``, a or b; "" where it has none."""
        cell: str | None = row[f"cell_{end}"]
        return self._labels[end == "b"][cell] if cell else ""

    def record(self, row: Mapping[str, Any], end: str) -> Row:
        """A row's cell of side ``end`` as in CELLS."""
        return self._cells[end == "b"][row[f"cell_{end}"]]

    def pair(self, row: Mapping[str, Any]) -> str:
        """A pair's layout and options; "tp2-pp16|32 mb4" where A has 16 stages and B 32."""
        if row["match"] == NAMED:
            return f"{self.cell(row, 'a')} | {self.cell(row, 'b')}"
        layout, *words = self.cell(row, "a").split(" ")
        return " ".join([_joined(layout, self.record(row, "b")["parallelism"]), *words])

    def work_of(self, row: Mapping[str, Any]) -> tuple[object, ...]:
        """What tells this work from others of its model."""
        known = work(self.record(row, "a"))
        return tuple(known[place] for place in self._telling)

    def work_label(self, row: Mapping[str, Any]) -> str:
        """A model, its workload where that is not pretraining, and what else tells it."""
        marks = ("sequences of {}", "batch {}", "{}")
        told = zip(self._telling, self.work_of(row), strict=True)
        words = [marks[place - 2].format(value) for place, value in told]
        if row["workload"] != "pretrain":
            words.insert(0, row["workload"])
        return " ".join([row["model"], *([f"({', '.join(words)})"] if words else [])])

    def fate(self, row: Mapping[str, Any]) -> str:
        """What kept a pair from being compared, in as few words as fit into a figure."""
        cells = [self.record(row, "a"), self.record(row, "b")]
        return "; ".join(
            f"{name}: {fate(cell)}"
            for name, cell in zip(self.names, cells, strict=True)
            if cell["outcome"] != "completed"
        )


def _joined(a: str, b: str) -> str:
    """Two layouts as one, without the degrees that are 1 in both."""
    of_a, of_b = a.split("-"), b.split("-")
    if a == b or len(of_a) != len(of_b):
        return " | ".join(dict.fromkeys([short_layout(a), short_layout(b)]))
    parts = [x if x == y else f"{x}|{y[2:]}" for x, y in zip(of_a, of_b, strict=True)]
    return short_layout("-".join(parts))
