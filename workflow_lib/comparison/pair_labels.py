"""The labels of cells and pairs, in figures and on the page."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from workflow_lib.comparison.matching import MEANS, NAMED, work
from workflow_lib.comparison.sides import Side
from workflow_lib.records import cell_axes
from workflow_lib.records.labels import labels
from workflow_lib.report.figures.cell_names import Row, fate, layouts_of_two
from workflow_lib.report.figures.kind import by_model


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
        told = cell_axes.differences(list(works.values()), MEANS)
        for (key, cell), words in zip(works.items(), told, strict=True):
            if cell["workload"] != "pretrain" and cell["workload"] not in words:
                words.insert(0, cell["workload"])
            named[key] = f"{model} ({', '.join(words)})" if words else model
    return named
