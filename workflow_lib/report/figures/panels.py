"""Measures as panels of a figure: which there are, how they are labelled, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workflow_lib.records import Measure, measures
from workflow_lib.report.cells import Row, completed


def panels_with_values(cells: Iterable[Row], without: Sequence[str] = ()) -> list[Measure]:
    """The panels of which any completed cell has a value, but for measures ``without``.

    A share of throttling is left out, too, where it is 0 throughout.
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
    """Whether there is a value to draw."""
    return completed(cell) and cell[measure] is not None
