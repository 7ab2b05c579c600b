"""The panels of a figure with several measures: which are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workflow_lib.records import Measure, measures
from workflow_lib.report.cells import Row, completed


def panels_with_values(cells: Iterable[Row], without: Sequence[str] = ()) -> list[Measure]:
    """The measures that have a panel and a value in any completed cell, except those in
    ``without``.

    A share of throttling that is 0 in all cells is left out as well.
    """
    done = [cell for cell in cells if completed(cell)]
    return [
        panel
        for panel in measures.shown_in("panels")
        if panel.name not in without
        and any(
            cell[panel.name] or (cell[panel.name] is not None and panel.factor == 1.0)
            for cell in done
        )
    ]


def has_measure(cell: Row, measure: str) -> bool:
    """Whether the cell completed and has a value of the measure."""
    return completed(cell) and cell[measure] is not None
