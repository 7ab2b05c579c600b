"""The measures of a cell and its runs as text, and why they are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workflow_lib.records.measures import ESTIMATES, MEASURES, PROFILED, Measure
from workflow_lib.records.reasons import Reason
from workflow_lib.report.cell_files import Clean
from workflow_lib.report.figures.cell_names import Row, completed
from workflow_lib.report.figures.numbers import NOTHING, shown, significant

_NO_REASON = Reason("no_reason")


class Reasons:
    """The distinct reasons why values are missing: hundreds of runs may share one."""

    def __init__(self, clean: Clean) -> None:
        self._clean = clean
        self._numbers: dict[str, int] = {}

    def number(self, reason: str) -> int:
        """A reason's index in :meth:`texts`."""
        return self._numbers.setdefault(self._clean(reason), len(self._numbers))

    def texts(self) -> list[str]:
        """All reasons."""
        return list(self._numbers)


def figures_of_cell(cell: Row, runs: Sequence[Row], reasons: Reasons) -> list[Any]:
    """A cell's MEASURES, in order. A value is its text, or its text and range. A missing value is
    the index of the reasons of the runs that lack it. A measure that does not apply to the workload
    is null."""
    why = [(run["run"], Reason.of_row(run)) for run in runs if completed(run)]
    found: list[Any] = []
    for measure in MEASURES.values():
        text, interval, value = shown(cell, measure)
        if not measure.applies(cell["workload"]):
            found.append(None)
        elif value is not None:
            found.append([text, interval] if interval else text)
        else:
            lacking: dict[str, list[str]] = {}
            for number, of_run in why:
                if measure.name in of_run:
                    lacking.setdefault(of_run[measure.name], []).append(str(number))
            told = "; ".join(
                reason if len(numbers) == len(why) else f"run {', '.join(numbers)}: {reason}"
                for reason, numbers in lacking.items()
            )
            found.append(reasons.number(told or _NO_REASON))
    return found


def figures_of_run(run: Row, reasons: Reasons) -> list[Any]:
    """A run's MEASURES, as :func:`figures_of_cell` gives them."""
    why = Reason.of_row(run)
    found: list[Any] = []
    for measure in MEASURES.values():
        value = run[measure.name]
        if not measure.applies(run["workload"]):
            found.append(None)
        elif value is None:
            found.append(reasons.number(why.get(measure.name, _NO_REASON)))
        elif isinstance(value, bool):
            found.append("yes" if value else "no")
        else:
            found.append(significant(value * measure.factor, decimals=measure.decimals))
    return found


def estimates(planned: Row) -> list[tuple[str, str, str]]:
    """The plan's estimates of a cell, as (heading, unit, value)."""
    return [
        (
            measure.heading,
            measure.people_unit,
            NOTHING if value is None else _estimate(value, measure),
        )
        for measure in ESTIMATES.values()
        for value in (planned[measure.name],)
    ]


def profiled_shares(cell: Row) -> list[tuple[str, str, str]]:
    """The known shares from the traces of a cell's profiled run, as (heading, unit, value)."""
    return [
        (each.heading, each.people_unit, significant(value * each.factor, decimals=each.decimals))
        for each in PROFILED.values()
        for value in (cell[each.name],)
        if value is not None
    ]


def _estimate(value: float, measure: Measure) -> str:
    # Counts have no decimals.
    return significant(value * measure.factor, decimals=0 if isinstance(value, int) else None)
